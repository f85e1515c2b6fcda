"""4 · Paced requests, each alone, must not all go to one replica because every load is zero between them."""

import pytest

from fleet import fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.policy.routing import RouterConfig


@pytest.mark.parametrize("policy", ["default", "least_load", "prefix", "kv", "session"])
async def test_case_04_paced_load_is_spread(policy: str) -> None:
    async with fleet(4, config=GatewayConfig(router=RouterConfig(policy=policy))) as f:
        for i in range(24):
            assert (await f.post(f.chat(f"{i * 31337} question", max_tokens=1))).status_code == 200
        assert max(f.counts()) - min(f.counts()) <= 2, f.counts()
        f.check()
