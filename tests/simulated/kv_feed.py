"""KV events of simulated replicas: numbered messages that arrive late or never, and can be replayed for a while."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import msgspec

from shoal.fleet.adapters.shoal import ShoalAdapter
from shoal.fleet.registry import RawEvents
from simulated.model import BLOCK

_KEPT = 40


class Feed:
    """What the process at one port publishes."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self.loss = 0.0
        """Chance that a message doesn't reach a follower, or that a replay isn't answered."""
        self._sent: list[RawEvents] = []
        self._sequence = 0
        self._followers: dict[asyncio.Queue[RawEvents], None] = {}

    def restart(self) -> None:
        """Another process: its numbers begin at 0."""
        self._sent, self._sequence = [], 0

    def stored(self, prompt: list[int], start: int) -> None:
        """The cache holds a prompt's whole blocks; those before `start` it held already."""
        count = len(prompt) // BLOCK
        if start >= count:
            return
        names = [hash(tuple(prompt[: (n + 1) * BLOCK])) % 2**60 for n in range(count)]
        event = {
            "type": "BlockStored",
            "block_hashes": names[start:],
            "parent_block_hash": names[start - 1] if start else None,
            "token_ids": prompt[start * BLOCK : count * BLOCK],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
        }
        message = RawEvents(self._sequence, msgspec.msgpack.encode([0.0, [event], 0]))
        self._sequence += 1
        self._sent = [*self._sent, message][-_KEPT:]
        for queue in self._followers:
            if self._draws.random() >= self.loss:
                asyncio.get_running_loop().call_later(self._draws.expovariate(100.0), queue.put_nowait, message)

    async def messages(self) -> AsyncIterator[RawEvents]:
        queue: asyncio.Queue[RawEvents] = asyncio.Queue()
        self._followers[queue] = None
        try:
            while True:
                yield await queue.get()
        finally:
            del self._followers[queue]

    async def replay(self, start: int) -> list[RawEvents] | None:
        await asyncio.sleep(self._draws.expovariate(100.0))
        if self._draws.random() < self.loss:
            await asyncio.sleep(2.0)
            return None
        return [message for message in self._sent if message.sequence >= start]


class SimulatedAdapter(ShoalAdapter):
    """Shoal's adapter, with simulated sockets for events."""

    def __init__(self, url: str, *, api_key: str | None, feed: Callable[[], Feed] | None) -> None:
        super().__init__(url, api_key=api_key)
        self._feed = feed

    def kv_events(self) -> AsyncIterator[RawEvents] | None:
        return self._feed().messages() if self._feed is not None else None

    async def replay(self, start: int) -> list[RawEvents] | None:
        return await self._feed().replay(start) if self._feed is not None else None
