"""Faults by schedule: what breaks, when, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from shoal.sim.events import Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway
from shoal.sim.health import HealthSweeps
from shoal.sim.legs import SimulatedAccount
from shoal.specs.errors import SpecError

FaultKind = Literal[
    "crash", "hang", "slow", "partition", "failed_load", "lost_events", "full_kv", "slow_link", "clock"
]
"""crash: its process ends, and is started again · hang: it lives and computes nothing · slow: its steps take
`factor` times as long · partition: the gateway doesn't reach it · failed_load: it crashes, and can't be started
`factor` times · lost_events: the router's index forgets what it holds · full_kv: `factor` of its blocks are taken ·
slow_link: hand-offs have 1 / `factor` of their bandwidth · clock: its gauges are `factor` seconds old."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times in seconds."""

    kind: FaultKind
    at: float
    replica: str
    seconds: float = 30.0
    """How long a hang, a slow-down or a partition lasts."""
    factor: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise SpecError("fault.kind", self.kind, f"one of {', '.join(get_args(FaultKind))}")
        for name in ("at", "seconds", "factor"):
            if not 0 <= getattr(self, name) < 1e9:
                raise SpecError(f"fault.{name}", getattr(self, name), "0 or more")


class Faults:
    """Makes faults happen."""

    def __init__(
        self, faults: Sequence[Fault], gateway: SimulatedGateway, health: HealthSweeps, events: Events, seed: int
    ) -> None:
        self._faults = faults
        self._gateway = gateway
        self._health = health
        self._events = events

    def start(self) -> None:
        """Schedule all of them. Raises SpecError for a replica that isn't there."""
        for fault in self._faults:
            if fault.replica not in self._gateway.accounts:
                names = ", ".join(a.name for a in self._gateway.accounts.replicas[:8])
                raise SpecError("fault.replica", fault.replica, f"one of {names}")
            self._schedule(fault)

    def _schedule(self, fault: Fault) -> None:
        self._events.at(nanoseconds(fault.at), lambda time: self._strike(fault, time))

    def _strike(self, fault: Fault, time: int) -> None:
        account = self._gateway.accounts.get(fault.replica)
        replica = account.replica
        if not replica.up:
            return  # what is down can't break
        until = time + nanoseconds(fault.seconds)
        match fault.kind:
            case "crash":
                self._health.crash(account, time)
            case "failed_load":
                account.fails_to_load = int(fault.factor)
                self._health.crash(account, time)
            case "hang":
                replica.hang(time)
                self._events.at(until, lambda t: self._recover(account, replica.counts.crashes, t))
            case "slow":
                replica.slow_down(fault.factor, time)
                self._events.at(until, lambda t: replica.slow_down(1.0, t))
            case "partition":
                account.cut_off = True
                self._events.at(until, lambda t: self._gateway.reconnect(account, t))
            case "lost_events":
                self._gateway.router.forget(account.name)
            case _:
                raise NotImplementedError(fault.kind)

    def _recover(self, account: SimulatedAccount, crashes: int, time: int) -> None:
        if account.replica.counts.crashes == crashes and account.replica.hangs:
            account.replica.recover(time)
