"""A whole fleet in one event loop: fake engines and a gateway on real sockets."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvicorn
from adapter import FakeAdapter
from engine import FakeEngine
from kv_events import KvPublisher

from shoal.fleet.gateway import Gateway, GatewayConfig
from shoal.fleet.health import HealthMonitor
from shoal.fleet.index import Followers
from shoal.fleet.index.zmq_stream import ZmqEvents
from shoal.fleet.registry import Registry, ReplicaHandle, Role
from shoal.policy.breaker import BreakerConfig
from shoal.policy.health import HealthConfig

FOREIGN_URL = os.environ.get("SHOAL_CONFORMANCE_URL")
"""Another router to test: it must have been told of fake engines on the ports below."""
FOREIGN_PORTS = [int(p) for p in os.environ.get("SHOAL_CONFORMANCE_PORTS", "").split(",") if p]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


@dataclass
class Fleet:
    engines: list[FakeEngine]
    client: httpx.AsyncClient
    url: str
    gateway: Gateway | None
    registry: Registry | None
    monitor: HealthMonitor | None
    publishers: list[KvPublisher] = field(default_factory=list)
    followers: Followers | None = None

    def chat(self, content: str = "hello", **fields: Any) -> dict[str, Any]:
        return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 4} | fields

    async def post(self, body: dict[str, Any], path: str = "/v1/chat/completions", **kw: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **kw)

    async def stream(
        self, body: dict[str, Any], path: str = "/v1/chat/completions", begun: asyncio.Event | None = None
    ) -> "Streamed":
        """A whole stream, read to its end. `begun` is set at its first bytes."""
        raw = b""
        async with self.client.stream("POST", path, json=body | {"stream": True}) as response:
            async for piece in response.aiter_bytes():
                raw += piece
                if begun is not None:
                    begun.set()
        return Streamed(response, raw)

    def counts(self) -> list[int]:
        return [engine.requests for engine in self.engines]

    def check(self) -> None:
        """Nothing is left: every lease released, every count at zero."""
        if self.registry is None:
            return
        ledger = self.registry.ledger
        ledger.check()
        assert self.gateway is not None
        assert self.gateway.splitter.counts.live == 0, "handed-over KV that nobody took or released"
        assert ledger.live() == 0, f"{ledger.live()} leases are still live"
        for replica in self.registry.replicas:
            state = replica.state
            assert (state.inflight, state.decoding, state.pending_tokens - 0.0) == (0, 0, 0.0) or state.foreign, (
                state
            )


@dataclass
class Streamed:
    response: httpx.Response
    raw: bytes

    @property
    def payloads(self) -> list[bytes]:
        return [line[5:].strip() for line in self.raw.splitlines() if line.startswith(b"data:")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(p) for p in self.payloads if p != b"[DONE]"]

    @property
    def done(self) -> bool:
        return self.payloads[-1:] == [b"[DONE]"]

    @property
    def error(self) -> dict[str, Any] | None:
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)

    @property
    def text(self) -> str:
        out = ""
        for chunk in self.chunks:
            for choice in chunk.get("choices", ()):
                out += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        return out

    @property
    def finish(self) -> str | None:
        return next(
            (c["finish_reason"] for k in self.chunks for c in k.get("choices", ()) if c["finish_reason"]), None
        )


async def eventually(condition: Any, what: str, seconds: float = 15.0) -> None:
    """Poll until `condition()` holds; fail with `what` after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port of the loopback."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="httptools",
        loop="none",
        lifespan="off",
        timeout_keep_alive=120,
        log_config=None,
        access_log=False,
    )
    server = _Server(config)
    task = asyncio.ensure_future(server.serve())
    await eventually(lambda: server.started or task.done(), "the server started")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait({task}, timeout=5)


QUICK = HealthConfig(check_seconds=0.05, check_timeout=0.3, failures=2, hang_seconds=0.5)
QUICK_BREAKER = BreakerConfig(open_seconds=0.2, open_seconds_max=1.0)


@contextlib.asynccontextmanager
async def fleet(
    count: int = 2,
    *,
    config: GatewayConfig | None = None,
    health: HealthConfig | None = None,
    breaker: BreakerConfig = QUICK_BREAKER,
    models: list[str] | None = None,
    monitored: bool = False,
    handle: dict[str, Any] | None = None,
    events: dict[str, Any] | None = None,
    roles: list[Role] | None = None,
) -> AsyncIterator[Fleet]:
    """`count` engines behind a gateway; or behind the router that the environment names."""
    names = models or ["fake"] * count
    ports = FOREIGN_PORTS if FOREIGN_URL else [0] * count
    if FOREIGN_URL and len(ports) < count:
        import pytest

        pytest.skip(f"needs {count} ports in SHOAL_CONFORMANCE_PORTS")
    engines = [await FakeEngine(f"e{i}", names[i], ports[i]).start() for i in range(count)]
    for engine in engines:
        engine.peers = {e.name: e for e in engines}
    limits = httpx.Limits(max_connections=1000)
    if FOREIGN_URL:
        async with httpx.AsyncClient(base_url=FOREIGN_URL, timeout=20, limits=limits) as client:
            try:
                yield Fleet(engines, client, FOREIGN_URL, None, None, None)
            finally:
                for engine in engines:
                    await engine.stop()
        return
    registry = Registry(breaker)
    adapters = [FakeAdapter(engine.url) for engine in engines]
    for engine, adapter in zip(engines, adapters, strict=True):
        defaults = ReplicaHandle(
            name=engine.name, url=engine.url, models=(engine.model,), adapter=adapter, returns_token_ids=True
        )
        role: Role = roles[int(engine.name[1:])] if roles else "both"
        registry.add(replace(defaults, role=role, **(handle or {})))
    gateway = Gateway(registry, config)
    index = gateway.router.event_index
    followers = Followers(registry, index) if index is not None else None
    publishers: list[KvPublisher] = []
    if events is not None and followers is not None:
        for place, (engine, adapter) in enumerate(zip(engines, adapters, strict=True)):
            publisher = KvPublisher(engine, hash_seed=place * 7919, **events)
            publishers.append(publisher)
            adapter.events = ZmqEvents(publisher.endpoint, publisher.replay_endpoint)
        followers.start()
    gateway.start()
    monitor = HealthMonitor(registry, health or QUICK)
    if monitored:
        monitor.start()
    try:
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20, limits=limits) as client:
            yield Fleet(engines, client, url, gateway, registry, monitor, publishers, followers)
            await client.aclose()
            await eventually(lambda: gateway.live == 0, "every request has ended")
            await gateway.drain(1)
    finally:
        await monitor.stop()
        if followers is not None:
            await followers.stop()
        for publisher in publishers:
            await publisher.close()
        registry.close()
        for adapter in adapters:
            adapter.close()
        for engine in engines:
            await engine.stop()
