"""19 · KV routing that misses silently is noticed: expected hits are held against actual ones.

(production-stack PR#1062)
"""

import pytest

from fleet import FOREIGN_URL, fleet
from shoal.policy.routing.trust import DEGRADED

PROMPT = "a long shared context " * 60


@pytest.mark.skipif(FOREIGN_URL is not None, reason="reads the gateway's own headers")
async def test_case_19_trust_falls_when_hits_do_not_come_true(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(1) as f:
        assert f.registry is not None
        engine, replica = f.engines[0], f.registry.get("e0")
        for i in range(5):
            answer = await f.post(f.chat(PROMPT + str(i), max_tokens=1))
        assert int(answer.headers["x-shoal-hit"]) > 0
        assert replica.trust.value > 0.9, "promises were kept so far"
        engine.prefix_caching = False
        for i in range(12):
            answer = await f.post(f.chat(PROMPT + str(i), max_tokens=1))
        assert int(answer.headers["x-shoal-predicted-hit"]) > 0
        assert int(answer.headers["x-shoal-hit"]) == 0
        assert replica.trust.value < DEGRADED
        assert "trust 0." in answer.headers["x-shoal-reason"]
        assert "don't come true" in caplog.text
        engine.prefix_caching = True
        for i in range(25):
            await f.post(f.chat(PROMPT + str(i), max_tokens=1))
        assert replica.trust.value > DEGRADED, "it can be earned back"


@pytest.mark.skipif(FOREIGN_URL is not None, reason="reads the gateway's own state")
async def test_case_19_an_engine_that_says_nothing_is_not_blamed() -> None:
    async with fleet(1) as f:
        assert f.registry is not None
        f.engines[0].cached_tokens = "none"
        for i in range(12):
            await f.post(f.chat(PROMPT + str(i), max_tokens=1))
        assert f.registry.get("e0").trust.value == 1.0
