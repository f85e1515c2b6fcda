"""2 · No replica idles while single-turn requests, which share nothing, are served (dynamo#7836)."""

import asyncio

from fleet import fleet


async def test_case_02_nobody_idles() -> None:
    async with fleet(4) as f:
        for engine in f.engines:
            engine.decode_seconds = 0.005
        answers = await asyncio.gather(*(f.post(f.chat(f"{i * 7919} {i}" * 20)) for i in range(40)))
        assert {a.status_code for a in answers} == {200}
        assert min(f.counts()) >= 6, f.counts()
        f.check()
