"""A follower for every replica of a registry."""

import asyncio
from collections.abc import Callable

from shoal.fleet.index.follower import Follower
from shoal.fleet.registry import Registry
from shoal.policy.routing.contracts import EventIndex


class Followers:
    """Starts and ends followers as replicas come and go."""

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
