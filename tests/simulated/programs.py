"""How the supervisor comes to simulated replicas: a dialect whose processes are simulated."""

import asyncio
import random
from typing import TYPE_CHECKING

from shoal.fleet.adapters import HttpAdapter, LaunchRequest, Traits
from shoal.fleet.adapters.shoal import Shoal
from shoal.fleet.launch import Command
from simulated.replica import SimulatedReplica

if TYPE_CHECKING:
    from simulated.processes import SimulatedProcess
    from simulated.world import World


class SimulatedDialect:
    """Shoal's own engine, as far as the fleet can tell."""

    traits: Traits = Shoal.traits

    def command(self, request: LaunchRequest) -> Command:
        return Command(argv=("replica", request.name, str(request.port)))

    def adapter(self, url: str, *, api_key: str | None, events: str | None) -> HttpAdapter:
        return Shoal().adapter(url, api_key=api_key, events=events)


class ReplicaProgram:
    """One process: it loads, serves and ends."""

    def __init__(self, world: "World", *, name: str, port: int) -> None:
        self._world = world
        self.name, self.port = name, port
        self._draws = random.Random(f"{world.run.seed}/{name} {port}")
        self.process: SimulatedProcess | None = None
        self.replica = SimulatedReplica(world.network, name, port, self._draws, world.journal, world.seeds)
        self._loading: asyncio.Task[None] | None = None
        self.ended = False
        self.frozen = False

    def begin(self) -> None:
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
            asyncio.get_running_loop().call_later(self._draws.uniform(0.01, 0.5), self.exit, 0)
