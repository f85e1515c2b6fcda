"""1 · A shared system prompt must not send all traffic to one of eight replicas (dynamo#737)."""

import asyncio

from fleet import fleet

SYSTEM = "You are a careful assistant. " * 150


async def test_case_01_a_shared_prompt_is_spread() -> None:
    async with fleet(8) as f:
        for engine in f.engines:
            engine.prefill_rate = 20_000
        # Someone warms one replica first: it now looks best to everybody.
        await f.post(f.chat("warm") | {"messages": [{"role": "system", "content": SYSTEM}]})
        waves = []
        for wave in range(2):
            before = f.counts()
            users = [{"role": "user", "content": f"{wave}-{i} why?"} for i in range(32)]
            bodies = [
                f.chat(max_tokens=30) | {"messages": [{"role": "system", "content": SYSTEM}, u]} for u in users
            ]
            answers = await asyncio.gather(*(f.post(body) for body in bodies))
            assert {a.status_code for a in answers} == {200}
            waves.append([now - then for now, then in zip(f.counts(), before, strict=True)])
        # Twice the even share of four: who was warm first stays a favourite for a moment, and no longer.
        assert max(map(max, waves)) <= 8, waves
        assert min(f.counts()) >= 1, waves
        f.check()
