"""Following one replica's KV events: in order, without gaps, through resets and restarts.

| the sequence number is…   | it means                        | done                                             |
|---------------------------|---------------------------------|--------------------------------------------------|
| the next one              |                                 | applied                                          |
| seen before               | a replay, or a message twice    | nothing                                          |
| 0 after more than 0       | another engine process          | forget the replica, apply                        |
| further on                | messages were lost              | replay them; if they are gone, forget and go on  |

Forgetting is always safe: a prefix that is held but not known costs a prefill, one that is known but not held costs
a wrong decision. That is why a gap that can't be filled is a reset.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from shoal.fleet.index.events import BadEvents, Cleared, Removed, decode_batch
from shoal.fleet.registry import RawEvents, Registry, Replica
from shoal.policy.outcomes import LegFailed
from shoal.policy.routing.contracts import EventIndex, StoredBlocks

log = logging.getLogger("shoal.fleet")

_RETRY_SECONDS = 1.0
REPLAY_SECONDS = 5.0


@dataclass(slots=True)
class FollowerCounts:
    """Since the start."""

    messages: int = 0
    events: int = 0
    gaps: int = 0
    replayed: int = 0
    resets: int = 0
    bad: int = 0


class Follower:
    """Applies one replica's events to the index."""

    def __init__(self, replica: Replica, index: EventIndex) -> None:
        self._replica = replica
        self._index = index
        self._next: int | None = None
        """The sequence number that should come; None: whatever comes first."""
        self.counts = FollowerCounts()

    async def run(self) -> None:
        """Follow until cancelled; reconnects when the stream ends."""
        adapter = self._replica.handle.adapter
        stream = adapter.kv_events() if adapter is not None else None
        while adapter is not None and stream is not None:
            with contextlib.suppress(OSError, TimeoutError, LegFailed):
                async for message in stream:
                    await self.on_message(message)
            await asyncio.sleep(_RETRY_SECONDS)
            stream = adapter.kv_events()

    async def on_message(self, message: RawEvents) -> None:
        """One message, in whatever order it comes."""
        self.counts.messages += 1
        expected = self._next
        if expected is not None and message.sequence != expected:
            if message.sequence < expected:
                if message.sequence == 0:
                    self._reset("its event numbers started again")
                else:
                    # Numbers that went back but not to the start: a restart whose first messages we missed, unless
                    # it is what we have seen already.
                    if not await self._restarted(message.sequence):
                        return
            else:
                self.counts.gaps += 1
                await self._fill(expected, message.sequence)
        elif expected is None and message.sequence > 0:
            # Joined late: what was announced before is still held.
            await self._fill(0, message.sequence)
        self._apply(message)

    async def _restarted(self, sequence: int) -> bool:
        """Whether a lower number means a new process: then its own latest number is lower than what we saw, too."""
        missed = await self._replay(self._next or 0)
        if missed is None or missed:
            # It still has what we expect next, or doesn't say: this message is an old one.
            return False
        earlier = await self._replay(0)
        latest = max((m.sequence for m in earlier or ()), default=-1)
        if latest < 0 or latest + 1 >= (self._next or 0):
            return False
        self._reset("its event numbers went back")
        for message in sorted(earlier or (), key=lambda m: m.sequence):
            if message.sequence < sequence:
                self._apply(message)
        return True

    async def _fill(self, start: int, end: int) -> None:
        """Messages `start` to `end` (excluded) from the engine's buffer, or a reset."""
        missed = await self._replay(start)
        wanted = sorted({m.sequence: m for m in missed or () if start <= m.sequence < end}.items())
        if missed is None or [sequence for sequence, _ in wanted] != list(range(start, end)):
            if self._next is not None:
                self._reset(f"messages {start} to {end - 1} are lost")
            return
        for _, message in wanted:
            self.counts.replayed += 1
            self._apply(message)

    async def _replay(self, start: int) -> list[RawEvents] | None:
        adapter = self._replica.handle.adapter
        if adapter is None:
            return None
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                return await adapter.replay(start)
        except (TimeoutError, OSError, LegFailed):
            return None

    def _reset(self, because: str) -> None:
        self.counts.resets += 1
        log.info("replica %s: %s; what it holds is learned anew", self._replica.name, because)
        self._index.cleared(self._replica.name)

    def _apply(self, message: RawEvents) -> None:
        self._next = message.sequence + 1
        try:
            events = decode_batch(message.payload)
        except BadEvents as error:
            self.counts.bad += 1
            log.warning("replica %s: message %d: %s", self._replica.name, message.sequence, error)
            self._reset("a message could not be read")
            return
        name, index = self._replica.name, self._index
        for event in events:
            self.counts.events += 1
            if isinstance(event, StoredBlocks):
                index.stored(name, event)
            elif isinstance(event, Removed):
                index.removed(name, event.hashes)
            elif isinstance(event, Cleared):
                index.cleared(name)


class Followers:
    """One for every replica of a registry: starts and ends them as replicas come and go."""

    def __init__(self, registry: Registry, index: EventIndex) -> None:
        self._registry = registry
        self._index = index
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.by_name: dict[str, Follower] = {}
        self._running = False
        self._leave: Callable[[], None] | None = None

    def start(self) -> None:
        self._running = True
        self._leave = self._registry.on_change(lambda name: self._sync())
        self._sync()

    async def stop(self) -> None:
        self._running = False
        if self._leave is not None:
            self._leave()
            self._leave = None
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sync(self) -> None:
        if not self._running:
            return
        present = {r.name: r for r in self._registry.replicas if r.handle.adapter is not None}
        for name in [n for n in self._tasks if n not in present]:
            self._tasks.pop(name).cancel()
            del self.by_name[name]
        for name, replica in present.items():
            if name not in self._tasks:
                follower = self.by_name[name] = Follower(replica, self._index)
                self._tasks[name] = asyncio.ensure_future(follower.run())
