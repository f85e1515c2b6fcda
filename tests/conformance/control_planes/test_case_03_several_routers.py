"""3 · Several routers must not pick the same "best" replica within one metrics period (dynamo#589)."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest

from fleet import FOREIGN_URL, fleet, serving
from shoal.fleet.gateway import Gateway, GatewayConfig
from shoal.fleet.registry import Registry, ReplicaHandle
from shoal.policy.routing import RouterConfig


@pytest.mark.skipif(FOREIGN_URL is not None, reason="starts several gateways itself")
async def test_case_03_routers_do_not_herd() -> None:
    async with fleet(8) as f, AsyncExitStack() as stack:
        clients = []
        for seed in (1, 2, 3):
            registry = Registry()
            stack.callback(registry.close)
            for engine in f.engines:
                engine.decode_seconds = 0.02
                registry.add(ReplicaHandle(name=engine.name, url=engine.url, models=("fake",)))
            gateway = Gateway(registry, GatewayConfig(router=RouterConfig(seed=seed)))
            url = await stack.enter_async_context(serving(gateway))
            clients.append(await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20)))
        # No gauge is read in between: each router knows of its own requests only.
        posts = [
            c.post("/v1/chat/completions", json=f.chat(f"{i} of {n}"))
            for n, c in enumerate(clients)
            for i in range(4)
        ]
        answers = await asyncio.gather(*posts)
        assert {a.status_code for a in answers} == {200}
        counts = f.counts()
        assert max(counts) <= 3, counts
        assert sum(c > 0 for c in counts) >= 6, counts
