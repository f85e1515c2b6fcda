"""How the supervisor comes to simulated replicas: a dialect whose processes are simulated."""

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from shoal.fleet.adapters import HttpAdapter, LaunchRequest, Traits
from shoal.fleet.adapters.shoal import Shoal
from shoal.fleet.launch import Command
from simulated.kv_feed import SimulatedAdapter
from simulated.replica import SimulatedReplica

if TYPE_CHECKING:
    from simulated.world import World


class SimulatedDialect:
    """Shoal's own engine, as far as the fleet can tell."""

    traits: Traits = Shoal.traits

    def __init__(self, world: "World") -> None:
        self._world = world

    def command(self, request: LaunchRequest) -> Command:
        return Command(argv=("replica", request.name, str(request.port)))

    def adapter(self, url: str, *, api_key: str | None, events: str | None) -> HttpAdapter:
        port = int(url.rpartition(":")[2])
        publishes = self._world.plan.kv_events
        return SimulatedAdapter(url, api_key=api_key, feed=partial(self._world.feed, port) if publishes else None)


class ReplicaProgram:
    """One process: it loads, serves and ends."""

    def __init__(self, world: "World", *, name: str, port: int) -> None:
        self._world = world
        self.name, self.port = name, port
        self._draws = random.Random(f"{world.run.seed}/{name} {port} {len(world.programs)}")
        self.replica = SimulatedReplica(
            world.network,
            name,
            port,
            draws=self._draws,
            journal=world.journal,
            seeds=world.seeds,
            feed=world.feed(port),
        )
        self._loading: asyncio.Task[None] | None = None
        self.ended = False
        self.frozen = False

    def begin(self) -> None:
        self.replica.feed.restart()
        self._world.troubles.on_start(self)
        self._loading = asyncio.ensure_future(self._load())

    async def _load(self) -> None:
        plan = self._world.plan
        await asyncio.sleep(self._draws.uniform(0.2, 2.0))
        if self._world.troubles.active and self._draws.random() < plan.failed_start:
            self._world.journal.note(self.name, "exits while loading")
            self.exit(1)
            return
        self.replica.listen()

    def exit(self, code: int) -> None:
        """Its process ends by itself."""
        for process in self._world.processes.running.values():
            if process.program is self:
                process.say(b"the last words of %d\n" % self.port)
                process.exit(code)

    def end(self) -> None:
        self.ended = True
        if self._loading is not None:
            self._loading.cancel()
        self.replica.crash()

    def stop(self, stopped: bool) -> None:
        self.frozen = stopped
        self.replica.freeze(stopped)

    def terminate(self) -> None:
        if not self.frozen:
            seconds = self._draws.choice((self._draws.uniform(0.01, 0.5), 10.0))
            asyncio.get_running_loop().call_later(seconds, self.exit, 0)


class AttachedProgram(ReplicaProgram):
    """A replica that runs elsewhere: whoever runs it starts another when it ends."""

    def exit(self, code: int) -> None:
        if not self.ended:
            self.end()
            asyncio.get_running_loop().call_later(self._draws.uniform(0.5, 4.0), self._again)

    def _again(self) -> None:
        if not self._world.over:
            self._world.attach(self.name, self.port)
