"""An adapter that is not ready before its replica has shown that it works."""

from collections.abc import AsyncIterator

from shoal.fleet.adapters.base import HttpAdapter
from shoal.fleet.registry import RawEvents
from shoal.policy.account import ReplicaStats


class ReadinessGate:
    """Says that a replica isn't ready until `open` is set: once it has generated a token."""

    def __init__(self, adapter: HttpAdapter) -> None:
        self.adapter = adapter
        self.open = False

    async def ready(self) -> bool:
        return self.open and await self.adapter.ready()

    async def stats(self) -> ReplicaStats:
        return await self.adapter.stats()

    def kv_events(self) -> AsyncIterator[RawEvents] | None:
        return self.adapter.kv_events()

    async def replay(self, start: int) -> list[RawEvents] | None:
        return await self.adapter.replay(start)
