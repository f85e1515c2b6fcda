"""What goes wrong in a run: which kinds of fault, how often, and when each begins and ends."""

import asyncio
import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulated.network import Weather

if TYPE_CHECKING:
    from simulated.programs import ReplicaProgram
    from simulated.world import World

KINDS = ("kill", "exit", "freeze", "slow", "cut", "storm", "unready", "renew", "reload")
ROUTERS = ("default", "default", "default", "kv", "round_robin", "cache_aware", "session", "power_of_two")
_MAX_RENEWALS = 2
"""Per run: each starts every replica again, one after the other, which takes its time."""


@dataclass(frozen=True)
class Plan:
    """Drawn per seed: a run with every fault at full rate would only ever test overload."""

    replicas: int
    seconds: float
    """How long faults last."""
    kinds: tuple[str, ...]
    pause: float
    """Mean seconds between two faults."""
    fault_rate: float
    """Chance of a fault at each step of an answer."""
    weather: Weather
    """Between gateway and replicas."""
    failed_start: float
    stall_rate: float
    attached: bool
    """The replicas run elsewhere; otherwise the supervisor starts them."""
    kv_events: bool
    clients: int
    """That ask at a time, one request after the other."""
    ttft_target: float | None
    policy: str
    prefills: int
    """Replicas that prefill for the others; 0: each does both."""
    stops: bool
    """The fleet is stopped under load and faults, instead of having to recover."""

    @classmethod
    def draw(cls, draws: random.Random) -> "Plan":
        def sometimes(rate: float) -> float:
            return rate * draws.random() if draws.random() < 0.5 else 0.0

        return cls(
            replicas=draws.choice((1, 2, 2, 3, 4)),
            seconds=draws.uniform(5.0, 25.0),
            kinds=tuple(kind for kind in KINDS if draws.random() < 0.5),
            pause=draws.uniform(0.5, 5.0),
            fault_rate=sometimes(0.05),
            weather=Weather(
                refuse=sometimes(0.2),
                vanish=sometimes(0.05),
                reset=sometimes(0.02),
                silence=sometimes(0.01),
                lag=sometimes(0.05),
            ),
            failed_start=sometimes(0.5),
            stall_rate=sometimes(0.0005),
            attached=draws.random() < 0.25,
            kv_events=draws.random() < 0.4,
            clients=draws.choice((2, 3, 5, 5, 10, 20)),
            ttft_target=draws.choice((None, None, 0.5)),
            policy=draws.choice(ROUTERS),
            prefills=draws.choice((0, 0, 0, 0, 1, 2)),
            stops=draws.random() < 0.2,
        )


class Troubles:
    """Of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._draws = random.Random(f"{world.run.seed}/troubles")
        self.active = False
        self._ends: list[asyncio.Task[None]] = []

    def on_start(self, program: "ReplicaProgram") -> None:
        """A process has been started: it has faults like those before it."""
        if self.active:
            self._equip(program)

    def _equip(self, program: "ReplicaProgram") -> None:
        plan, world = self._world.plan, self._world
        program.replica.fault_rate = plan.fault_rate
        program.replica.feed.loss = 10 * plan.fault_rate
        world.network.weather[program.port] = plan.weather

    @property
    def _living(self) -> list["ReplicaProgram"]:
        return [program for program in self._world.programs if not program.ended]

    async def run(self) -> None:
        """Faults for as long as planned, then none."""
        world, plan = self._world, self._world.plan
        self.active = True
        world.loop.stall_rate = plan.stall_rate
        for program in self._living:
            self._equip(program)
        ends_at = world.loop.time() + plan.seconds
        while (left := ends_at - world.loop.time()) > 0:
            await asyncio.sleep(min(left, self._draws.expovariate(1 / plan.pause)))
            if self._living and plan.kinds and world.loop.time() < ends_at:
                self._strike(self._draws.choice(plan.kinds), self._draws.choice(self._living))
        self._calm()
        await asyncio.gather(*self._ends)

    def _strike(self, kind: str, program: "ReplicaProgram") -> None:
        world, draws = self._world, self._draws
        world.run.faults[kind] += 1
        world.journal.note("fault", f"{kind} {program.name}")
        if kind == "kill":
            program.exit(-signal.SIGKILL)
        elif kind == "exit":
            program.exit(1)
        elif kind in ("renew", "reload"):
            if world.run.faults[kind] <= _MAX_RENEWALS and not world.ended:
                getattr(world.service, kind)()
        else:
            self._ends.append(asyncio.ensure_future(self._episode(kind, program, draws.uniform(0.2, 10.0))))

    async def _episode(self, kind: str, program: "ReplicaProgram", seconds: float) -> None:
        """A fault that lasts, up to the end of all faults."""
        network, replica = self._world.network, program.replica
        if kind == "freeze":
            program.stop(True)
        elif kind == "slow":
            replica.slowness = self._draws.uniform(2.0, 100.0)
        elif kind == "cut":
            network.cut.add(program.port)
        elif kind == "storm":
            network.weather[program.port] = Weather(refuse=0.3, vanish=0.2, reset=0.1, silence=0.05, lag=0.2)
        elif kind == "unready":
            replica.ready = False
        ends_at = self._world.loop.time() + seconds
        while self.active and self._world.loop.time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        program.stop(False)
        replica.slowness, replica.ready = 1.0, True
        network.cut.discard(program.port)
        if self.active:
            network.weather[program.port] = self._world.plan.weather

    def _calm(self) -> None:
        self.active = False
        self._world.loop.stall_rate = 0.0
        self._world.network.heal()
        for program in self._world.programs:
            program.replica.fault_rate = program.replica.feed.loss = 0.0
