"""1 · A shared system prompt must not send all traffic to one of eight replicas (dynamo#737)."""

import asyncio

from fleet import fleet

SYSTEM = "You are a careful assistant. " * 150


async def test_case_01_a_shared_prompt_is_spread() -> None:
    async with fleet(8) as f:
        for engine in f.engines:
            # As real ones: whoever has many requests is slower for each.
            engine.prefill_rate, engine.decode_slope = 20_000, 0.001
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
        # While the others compute the prompt for the first time, who holds it may be the quickest for many at once;
        # not for all, and not once the others hold it too: then four each are even.
        assert max(waves[0]) < 32, waves
        assert max(waves[1]) <= 8, waves
        assert min(f.counts()) >= 1, waves
        f.check()
