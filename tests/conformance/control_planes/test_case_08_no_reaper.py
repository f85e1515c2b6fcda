"""8 · Nothing may delete the counts of live requests and so reopen the gate (llm-d-router#2295)."""

import asyncio

import pytest

from fleet import FOREIGN_URL, eventually, fleet


@pytest.mark.skipif(FOREIGN_URL is not None, reason="needs a limit of one request a replica")
async def test_case_08_long_streams_keep_their_count() -> None:
    async with fleet(2, handle={"max_inflight": 1}, monitored=True) as f:
        for engine in f.engines:
            engine.decode_seconds = 0.02
        streams = [asyncio.ensure_future(f.stream(f.chat(f"{i}", max_tokens=50))) for i in range(2)]
        await eventually(lambda: f.counts() == [1, 1], "both are busy")
        late = asyncio.ensure_future(f.post(f.chat("late", max_tokens=1)))
        # Many rounds of checks and gauges pass meanwhile.
        await eventually(lambda: all(e.generated > 20 for e in f.engines), "the streams went on")
        assert f.counts() == [1, 1]
        assert not late.done()
        assert all(s.done for s in await asyncio.gather(*streams))
        assert (await late).status_code == 200
        assert [e.peak for e in f.engines] == [1, 1]
        f.check()
