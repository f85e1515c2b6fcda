"""Faults by schedule or by rates: what breaks, when, and for how long.

| kind          | what happens                                           | found by                       |
|---------------|--------------------------------------------------------|--------------------------------|
| `crash`       | its process ends; its legs break off                   | connections, its supervisor    |
| `failed_load` | a crash; then it can't be started `factor` times       | its supervisor                 |
| `hang`        | it lives, and neither computes nor answers nor sends   | checks, limits of time         |
| `slow`        | its steps take `factor` times as long                  | the judgement of stragglers    |
| `partition`   | the gateway can't reach it; replicas reach each other  | checks, connections            |
| `lost_events` | the router's index forgets what it holds               | nobody: hits are foreseen less |
| `full_kv`     | all but 1 / `factor` of its blocks are taken           | gauges, hang detection         |
| `slow_link`   | hand-offs have 1 / `factor` of its link's bandwidth    | nobody, for a minute           |

A slow rank is a slow replica, since a step ends with its slowest rank. A jump of a replica's clock changes nothing
in the real fleet, so there is no such kind: reports carry no times, the gateway dates them by its own clock, which
doesn't jump.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from shoal.policy.batching import CountedScheduler
from shoal.sim.events import Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway
from shoal.sim.health import HealthSweeps
from shoal.sim.legs import SimulatedAccount
from shoal.specs.errors import SpecError

FaultKind = Literal["crash", "failed_load", "hang", "slow", "partition", "lost_events", "full_kv", "slow_link"]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_FACTORS: Mapping[FaultKind, float] = MappingProxyType(
    {"failed_load": 2.0, "slow": 8.0, "full_kv": 16.0, "slow_link": 100.0}
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times in seconds."""

    kind: FaultKind
    at: float
    replica: str
    seconds: float = 30.0
    """How long a hang, a slow-down, a partition, full memory or a slow link lasts."""
    factor: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError("fault.kind", self.kind, f"one of {', '.join(KINDS)}")
        for name in ("at", "seconds", "factor"):
            if not 0 <= getattr(self, name) < 1e9:
                raise SpecError(f"fault.{name}", getattr(self, name), "0 or more")
        if self.kind in ("slow", "full_kv", "slow_link") and self.factor < 1:
            raise SpecError("fault.factor", self.factor, f"1 or more for {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Faults of each kind that come by themselves, at random and independently of each other."""

    per_hour: Mapping[FaultKind, float] = field(default_factory=dict)
    """Of each replica."""
    seconds: float = 30.0
    """Mean length; lengths are exponential."""
    factors: Mapping[FaultKind, float] = field(default_factory=lambda: dict(_FACTORS))
    """See `Fault.factor`; 4 where a kind is left out."""

    def __post_init__(self) -> None:
        for kind, rate in self.per_hour.items():
            if kind not in KINDS:
                raise SpecError("fault.kind", kind, f"one of {', '.join(KINDS)}")
            if not 0 <= rate < 3600:
                raise SpecError(f"fault.{kind}", rate, "0 or more per replica-hour, less than 3,600")

    def draw(self, replicas: Sequence[str], hours: float, seed: int) -> tuple[Fault, ...]:
        """Draw the faults of so many hours, in order of time: gaps between those of a kind are exponential."""
        rng = np.random.default_rng([seed, 0xFA])
        faults = []
        for kind in KINDS:
            mean = self.per_hour.get(kind, 0.0) * hours * len(replicas)
            count = int(rng.poisson(mean))
            times = rng.uniform(0.0, hours * 3600.0, count)
            who = rng.integers(0, len(replicas), count)
            lengths = rng.exponential(self.seconds, count)
            faults += [
                Fault(kind, float(at), replicas[int(number)], float(length), self.factors.get(kind, 4.0))
                for at, number, length in zip(times, who, lengths, strict=True)
            ]
        return tuple(sorted(faults, key=lambda fault: fault.at))


class Faults:
    """Makes faults happen."""

    def __init__(
        self, faults: Sequence[Fault], gateway: SimulatedGateway, health: HealthSweeps, events: Events
    ) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.at)
        self._gateway = gateway
        self._health = health
        self._events = events
        self._next = 0
        self._ends: dict[tuple[str, FaultKind], int] = {}
        """When the last fault of a kind at a replica ends: a further one may last longer."""
        self.struck: Counter[FaultKind] = Counter()
        """Those that found their replica alive."""

    def start(self) -> None:
        """Expect the first. Raises SpecError for a replica that isn't there."""
        for fault in self._faults:
            if fault.replica not in self._gateway.accounts:
                names = ", ".join(a.name for a in self._gateway.accounts.replicas[:8])
                raise SpecError("fault.replica", fault.replica, f"one of {names}")
        self._expect()

    def _expect(self) -> None:
        if self._next < len(self._faults):
            self._events.at(nanoseconds(self._faults[self._next].at), self._on_time)

    def _on_time(self, time: int) -> None:
        fault = self._faults[self._next]
        self._next += 1
        self._expect()
        account = self._gateway.accounts.get(fault.replica)
        if account.replica.up:  # what is down can't break
            self.struck[fault.kind] += 1
            self._health.watch(account)
            self._strike(fault, account, time)

    def _strike(self, fault: Fault, account: SimulatedAccount, time: int) -> None:
        match fault.kind:
            case "crash":
                self._health.crash(account, time)
            case "failed_load":
                account.fails_to_load = int(fault.factor)
                self._health.crash(account, time)
            case "lost_events":
                self._gateway.router.forget(account.name)
            case "full_kv":
                replica, scheduler = account.replica, account.replica.scheduler
                blocks = replica.take_blocks(1.0 - 1.0 / fault.factor, time)
                until = time + nanoseconds(fault.seconds)
                self._events.at(until, lambda t: self._give_back(account, scheduler, blocks, t))
            case _:
                self._begin(fault, account, time)
                until = time + nanoseconds(fault.seconds)
                key = account.name, fault.kind
                self._ends[key] = max(until, self._ends.get(key, 0))
                self._events.at(until, lambda t: self._over(fault.kind, account, t))

    def _begin(self, fault: Fault, account: SimulatedAccount, time: int) -> None:
        handovers = self._gateway.splitter.handovers
        if fault.kind == "hang":
            account.replica.hang(time)
            handovers.stopped(account, time)
        elif fault.kind == "slow":
            account.replica.slow_down(fault.factor, time)
        elif fault.kind == "partition":
            self._gateway.note_sent(account, time)
            account.cut_off = True
        else:
            handovers.network.slow_down(account.name, fault.factor, time)

    def _over(self, kind: FaultKind, account: SimulatedAccount, time: int) -> None:
        if self._ends[account.name, kind] > time:
            return
        self._health.watch(account)
        handovers = self._gateway.splitter.handovers
        if kind == "hang":
            # A process that was started meanwhile doesn't hang.
            if account.replica.hangs:
                account.replica.recover(time)
                handovers.resumed(account, time)
        elif kind == "slow":
            account.replica.slow_down(1.0, time)
        elif kind == "partition":
            self._gateway.reconnect(account, time)
        else:
            handovers.network.slow_down(account.name, 1.0, time)

    @staticmethod
    def _give_back(account: SimulatedAccount, scheduler: CountedScheduler, blocks: list[int], time: int) -> None:
        if account.replica.up and account.replica.scheduler is scheduler:
            account.replica.give_back(blocks, time)
