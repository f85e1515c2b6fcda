"""23 · Several gateways share index and load, and a failover doesn't start empty (llm-d-router#1892)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis_server import needs_redis, redis_server

from fleet import FOREIGN_URL, Fleet, eventually, fleet, serving
from shoal.fleet.gateway import Gateway, GatewayConfig
from shoal.fleet.registry import Registry, ReplicaHandle
from shoal.fleet.shared import SharedState
from shoal.policy.routing import RouterConfig

aioredis = pytest.importorskip("redis.asyncio", reason="needs the redis package")
pytestmark = [
    pytest.mark.skipif(FOREIGN_URL is not None, reason="starts several gateways itself"),
    needs_redis,
]
PROMPT = "a long shared context " * 60


@dataclass
class Door:
    registry: Registry
    shared: SharedState
    client: httpx.AsyncClient


@contextlib.asynccontextmanager
async def door(f: Fleet, socket: str, seed: int) -> AsyncIterator[Door]:
    registry = Registry()
    for engine in f.engines:
        registry.add(ReplicaHandle(name=engine.name, url=engine.url, models=("fake",)))
    gateway = Gateway(registry, GatewayConfig(router=RouterConfig(seed=seed)))
    client: Any = aioredis.Redis(unix_socket_path=socket)
    shared = SharedState(client, registry, gateway.router)
    gateway.share(shared)
    await shared.start()
    try:
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            yield Door(registry, shared, http)
    finally:
        await shared.stop()
        await gateway.drain(1)
        registry.close()
        await client.aclose()


async def test_case_23_what_one_decided_the_other_knows(tmp_path: Path) -> None:
    async with fleet(4) as f, redis_server(tmp_path) as socket, door(f, socket, 1) as a, door(f, socket, 2) as b:
        first = await a.client.post("/v1/chat/completions", json=f.chat(PROMPT))
        await eventually(lambda: b.shared.received == 1, "the decision arrived")
        second = await b.client.post("/v1/chat/completions", json=f.chat(PROMPT))
        assert second.headers["x-shoal-replica"] == first.headers["x-shoal-replica"]
        assert int(second.headers["x-shoal-hit"]) > 0


async def test_case_23_load_of_one_counts_for_the_other(tmp_path: Path) -> None:
    async with fleet(2) as f, redis_server(tmp_path) as socket, door(f, socket, 1) as a, door(f, socket, 1) as b:
        for engine in f.engines:
            engine.decode_seconds = 0.2
        long = asyncio.ensure_future(a.client.post("/v1/chat/completions", json=f.chat("long", max_tokens=20)))
        await eventually(lambda: sum(f.counts()) == 1, "it runs")
        busy = next(e.name for e in f.engines if e.requests)
        await eventually(lambda: b.registry.get(busy).state.foreign == 1, "the other knows")
        for i in range(3):
            answer = await b.client.post("/v1/chat/completions", json=f.chat(f"short {i}", max_tokens=1))
            assert answer.headers["x-shoal-replica"] != busy
        long.cancel()
        await eventually(lambda: b.registry.get(busy).state.foreign == 0, "and forgets it")


async def test_case_23_a_failover_does_not_start_empty(tmp_path: Path) -> None:
    async with fleet(4) as f, redis_server(tmp_path) as socket:
        async with door(f, socket, 1) as a:
            first = await a.client.post("/v1/chat/completions", json=f.chat(PROMPT))
            async with door(f, socket, 3) as witness:
                await eventually(lambda: witness.shared.received == 1, "it was written down")
        async with door(f, socket, 9) as c:
            again = await c.client.post("/v1/chat/completions", json=f.chat(PROMPT))
            assert again.headers["x-shoal-replica"] == first.headers["x-shoal-replica"]
            assert int(again.headers["x-shoal-predicted-hit"]) > 0


async def test_case_23_without_redis_everything_goes_on(tmp_path: Path) -> None:
    async with fleet(2) as f:
        async with redis_server(tmp_path) as socket, door(f, socket, 1) as a:
            assert (await a.client.post("/v1/chat/completions", json=f.chat("one"))).status_code == 200
            await eventually(lambda: a.shared.connected, "it is connected")
        async with door(f, str(tmp_path / "redis.sock"), 2) as b:
            async with asyncio.timeout(5):
                assert (await b.client.post("/v1/chat/completions", json=f.chat("two"))).status_code == 200
            assert not b.shared.connected
