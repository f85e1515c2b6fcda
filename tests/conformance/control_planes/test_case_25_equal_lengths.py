"""25 · Token-id prompts of equal length must not all go to one replica (vllm-router's benchmark notes)."""

import asyncio

import pytest

from fleet import fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.policy.routing import POLICIES, RouterConfig


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_case_25_equal_lengths_are_spread(policy: str) -> None:
    async with fleet(4, config=GatewayConfig(router=RouterConfig(policy=policy, seed=5))) as f:
        for engine in f.engines:
            engine.decode_seconds = 0.003
        bodies = [
            {"model": "fake", "prompt": [n * 64 + i for i in range(64)], "max_tokens": 3} for n in range(1, 41)
        ]
        answers = await asyncio.gather(*(f.post(body, "/v1/completions") for body in bodies))
        assert {a.status_code for a in answers} == {200}
        # Random choices scatter; nobody else may.
        bound = 20 if policy in ("random", "power_of_two") else 14
        assert max(f.counts()) <= bound, f.counts()
        assert min(f.counts()) >= 2, f.counts()
