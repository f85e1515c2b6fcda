"""Gateways before the same replicas share what they decided, through Redis; each works without it.

| key                      | holds                                            | lives                   |
|--------------------------|--------------------------------------------------|-------------------------|
| `<prefix>:decisions`     | a stream of (gateway, replica, prefix blocks)    | bounded in entries      |
| `<prefix>:load:<gateway>`| what this gateway has in flight on every replica | seconds, if not renewed |

Replicas are known by their names, so that gateways of one fleet name the same pools and URLs; those that a gateway
started itself are nobody else's and stay out. A gateway that starts reads the stream from its beginning, so that it
takes over with the index that the others have. A gateway that dies takes its load with it as its key expires. When
Redis is away, decisions go on with what is known: nothing ever waits for it.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Any

import msgspec

from shoal.fleet.registry import Registry
from shoal.policy.routing import Router, RouteRequest

log = logging.getLogger("shoal.fleet")

_PERIOD = 0.05
_LOAD_SECONDS = 2.0
_ENTRIES = 20_000
_OUTBOX = 10_000
_BATCH = 500


class _Decision(msgspec.Struct, array_like=True):
    replica: str
    blocks: list[bytes]
    tail: bytes
    block_tokens: float
    prompt_tokens: int


class _Load(msgspec.Struct, array_like=True):
    inflight: int
    pending: float


_decision = msgspec.msgpack.Decoder(_Decision)
_loads = msgspec.msgpack.Decoder(dict[str, _Load])
_encode = msgspec.msgpack.encode


class SharedState:
    """One gateway's part. `noted` for each decision; `start` and `stop` around its life.

    `redis` is a `redis.asyncio.Redis` client (`decode_responses` off).
    """

    def __init__(self, redis: Any, registry: Registry, router: Router, *, prefix: str = "shoal") -> None:
        self.gateway = uuid.uuid4().hex[:12]
        self.connected = False
        self.received = self.dropped = 0
        self._redis = redis
        self._registry = registry
        self.router = router
        self._stream = f"{prefix}:decisions"
        self._load = f"{prefix}:load:"
        self._outbox: list[_Decision] = []
        self._last = b"0"
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        """The client waits with `wait_for`, which in Python 3.11 can swallow a cancellation; loops look here."""

    def noted(self, request: RouteRequest, replica: str) -> None:
        """A decision was made here. Never blocks; beyond ten thousand unsent ones the newest are dropped."""
        if not request.blocks or self._registry.get(replica).handle.own:
            return
        if len(self._outbox) >= _OUTBOX:
            self.dropped += 1
            return
        self._outbox.append(
            _Decision(replica, list(request.blocks), request.tail, request.block_tokens, request.prompt_tokens)
        )

    async def start(self, seconds: float = 2.0) -> None:
        """Take over what is known, as far as it comes within `seconds`, and share from now on."""
        self._stopping = False
        try:
            async with asyncio.timeout(seconds):
                while await self._receive(None):
                    pass
        except Exception as error:
            self._lost(error)
        self._tasks = [asyncio.ensure_future(self._sending()), asyncio.ensure_future(self._receiving())]

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await self._redis.delete(self._load + self.gateway)

    async def _sending(self) -> None:
        while not self._stopping:
            await asyncio.sleep(_PERIOD)
            try:
                async with asyncio.timeout(1.0):
                    await self._send()
                    await self._read_loads()
                self._found()
            except Exception as error:
                self._lost(error)
                self._share({})
                await asyncio.sleep(0.5)

    async def _send(self) -> None:
        batch, self._outbox = self._outbox[:_BATCH], self._outbox[_BATCH:]
        loads = {
            r.name: _Load(r.state.inflight, r.own_pending)
            for r in self._registry.replicas
            if r.state.inflight and not r.handle.own
        }
        pipe = self._redis.pipeline(transaction=False)
        for decision in batch:
            fields = {b"g": self.gateway, b"d": _encode(decision)}
            pipe.xadd(self._stream, fields, maxlen=_ENTRIES, approximate=True)
        pipe.set(self._load + self.gateway, _encode(loads), px=int(_LOAD_SECONDS * 1000))
        await pipe.execute()

    async def _read_loads(self) -> None:
        own = (self._load + self.gateway).encode()
        keys = [key async for key in self._redis.scan_iter(match=self._load + "*", count=100) if key != own]
        total: dict[str, _Load] = {}
        for data in await self._redis.mget(keys) if keys else ():
            if data is None:
                continue
            for name, load in _loads.decode(data).items():
                known = total.get(name, _Load(0, 0.0))
                total[name] = _Load(known.inflight + load.inflight, known.pending + load.pending)
        self._share(total)

    def _share(self, total: dict[str, _Load]) -> None:
        now = self._registry.clock()
        for replica in self._registry.replicas:
            load = total.get(replica.name)
            replica.on_peer_gateways(load.inflight if load else 0, load.pending if load else 0.0, now)

    async def _receiving(self) -> None:
        while not self._stopping:
            try:
                await self._receive(1000)
            except Exception as error:
                self._lost(error)
                await asyncio.sleep(0.5)

    async def _receive(self, block_ms: int | None) -> bool:
        """Apply what others decided; whether there was anything."""
        found = await self._redis.xread({self._stream: self._last}, count=_BATCH, block=block_ms)
        index = self.router.index
        applied = False
        for _, entries in found or ():
            for entry, fields in entries:
                self._last = entry
                applied = True
                if fields[b"g"] == self.gateway.encode() or index is None:
                    continue
                decision = _decision.decode(fields[b"d"])
                if decision.replica not in self._registry:
                    continue
                self.received += 1
                # Entries are stamped with Redis' clock in milliseconds: what is old here is old there.
                age = max(0.0, time.time() - int(entry.split(b"-")[0]) / 1000)
                request = RouteRequest(
                    "",
                    "",
                    decision.prompt_tokens,
                    blocks=decision.blocks,
                    tail=decision.tail,
                    block_tokens=decision.block_tokens,
                )
                index.chosen(request, decision.replica, self._registry.clock() - age)
        return applied

    def _lost(self, error: Exception) -> None:
        if self.connected or not self._tasks:
            log.warning(
                "no shared state: %s; this gateway goes on with its own", str(error) or type(error).__name__
            )
        self.connected = False

    def _found(self) -> None:
        if not self.connected:
            log.info("shared state is there")
        self.connected = True
