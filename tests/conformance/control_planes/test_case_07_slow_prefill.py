"""7 · Load counts from selection, not from the first response: slow prefills must not pile on one (smg PR#1714)."""

import asyncio

from fleet import eventually, fleet


async def test_case_07_load_counts_from_selection() -> None:
    async with fleet(4) as f:
        for engine in f.engines:
            engine.prefill_rate = 500
        tasks = [asyncio.ensure_future(f.post(f.chat(f"{i}" + " long prompt" * 30))) for i in range(8)]
        await eventually(lambda: sum(f.counts()) == 8, "all were sent on")
        assert f.counts() == [2, 2, 2, 2]
        assert all(e.completed == 0 for e in f.engines)
        await asyncio.gather(*tasks)
        f.check()
