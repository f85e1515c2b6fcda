"""The dialect of the fake engine."""

from collections.abc import AsyncIterator

import msgspec

from shoal.fleet.index.zmq_stream import ZmqEvents
from shoal.fleet.registry import RawEvents
from shoal.http.client import Endpoint
from shoal.policy.account import ReplicaStats


class FakeAdapter:
    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint(url, connect_seconds=1.0)
        self.events: ZmqEvents | None = None

    async def ready(self) -> bool:
        return (await self._endpoint.get(b"/health", seconds=1.0))[0] == 200

    async def stats(self) -> ReplicaStats:
        return msgspec.json.decode((await self._endpoint.get(b"/stats", seconds=1.0))[1], type=ReplicaStats)

    def kv_events(self) -> AsyncIterator[RawEvents] | None:
        return self.events.messages() if self.events is not None else None

    async def replay(self, start: int) -> list[RawEvents] | None:
        return await self.events.replay(start) if self.events is not None else None

    def close(self) -> None:
        self._endpoint.close()
        if self.events is not None:
            self.events.close()
