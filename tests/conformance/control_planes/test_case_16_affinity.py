"""16 · Affinity doesn't pin to a dead replica, recovery waits for none that vanished (dynamo PR#11646, #10580)."""

import asyncio

import pytest

from fleet import eventually, fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.policy.routing import RouterConfig


@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("policy", ["session", "default", "prefix", "cache_aware"])
async def test_case_16_a_dead_replica_lets_its_sessions_go(policy: str, monitored: bool) -> None:
    config = GatewayConfig(router=RouterConfig(policy=policy))
    async with fleet(3, config=config, monitored=monitored) as f:
        body = f.chat("a conversation " * 30)
        headers = {"x-session-id": "alice"}
        homes = [(await f.post(body, headers=headers)).headers.get("x-shoal-replica") for _ in range(3)]
        if homes[0] is not None:
            assert len(set(homes)) == 1, homes
        home = max(f.engines, key=lambda e: e.requests)
        await home.stop()
        async with asyncio.timeout(5):
            answers = [await f.post(body, headers=headers) for _ in range(5)]
        assert {a.status_code for a in answers} == {200}
        f.check()


async def test_case_16_streams_on_it_move_at_once() -> None:
    async with fleet(2) as f:
        for engine in f.engines:
            engine.decode_seconds = 0.01
        task = asyncio.ensure_future(f.stream(f.chat("go on", max_tokens=40, temperature=0)))
        await eventually(lambda: any(e.generated > 5 for e in f.engines), "the stream began")
        await next(e for e in f.engines if e.generated).stop()
        got = await asyncio.wait_for(task, 5)
        assert got.done
        assert got.finish == "length"
