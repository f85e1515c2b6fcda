"""10 · Only faults open a breaker; back-pressure and client errors don't, and a 400 doesn't close a half-open one.

(sglang#25811 and others: client 400s opened breakers until the fleet was out.)
"""

import asyncio

import pytest
from engine import Fault

from fleet import FOREIGN_URL, eventually, fleet
from shoal.policy.breaker import BreakerConfig


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
async def test_case_10_a_flood_of_refusals_is_no_outage(status: int) -> None:
    async with fleet(2) as f:
        for engine in f.engines:
            engine.fault = Fault("status", status=status)
        answers = await asyncio.gather(*(f.post(f.chat(str(i))) for i in range(30)))
        assert {a.status_code for a in answers} <= {status, 503}
        for engine in f.engines:
            engine.fault = None
        before = f.counts()
        assert {(await f.post(f.chat(f"after {i}"))).status_code for i in range(6)} == {200}
        assert all(now > then for now, then in zip(f.counts(), before, strict=True)), "both still get requests"


@pytest.mark.skipif(FOREIGN_URL is not None, reason="looks into the breaker")
async def test_case_10_a_400_does_not_close_a_half_open_breaker() -> None:
    async with fleet(1, breaker=BreakerConfig(consecutive=2, open_seconds=0.05, open_seconds_max=0.1)) as f:
        assert f.registry is not None
        engine, breaker = f.engines[0], f.registry.get("e0").breaker
        engine.fault = Fault("status", status=500)
        await f.post(f.chat())
        await f.post(f.chat())
        clock = f.registry.clock
        assert breaker.opened >= 1
        engine.fault = Fault("status", status=400)
        await eventually(lambda: breaker.state(clock()) == "half_open", "half open")
        assert (await f.post(f.chat())).status_code == 400
        assert breaker.state(clock()) == "half_open"
        engine.fault = Fault("status", status=429)
        assert (await f.post(f.chat())).status_code in (429, 503)
        assert breaker.state(clock()) == "half_open"
        engine.fault = None
        assert (await f.post(f.chat())).status_code == 200
        assert breaker.state(clock()) == "closed"


async def test_case_10_faults_do_open_it() -> None:
    async with fleet(2) as f:
        sick, well = f.engines
        sick.fault = Fault("status", status=500)
        for i in range(12):
            assert (await f.post(f.chat(str(i)))).status_code == 200
        assert sick.requests <= 6, f.counts()
        assert well.requests == 12
