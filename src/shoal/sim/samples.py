"""What is kept of a run beside its requests: how replicas stood now and then, how far apart tokens came."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica at one moment."""

    time: float
    """Seconds."""
    replica: str
    running: int
    waiting: int
    kv_usage: float
    """Share of its blocks that are owned."""
    hit_tokens: int
    """Since the start, as the next."""
    queried_tokens: int
    queued: int
    """Requests that wait at the gateway, for whatever replica."""
    available: bool


class Sampler:
    """Takes samples every so many seconds."""

    def __init__(self, gateway: SimulatedGateway, events: Events, seconds: float | None) -> None:
        self.samples: list[Sample] = []
        self._gateway = gateway
        self._events = events
        self._period = None if seconds is None else nanoseconds(seconds)

    def start(self) -> None:
        """Begin; nothing happens where no samples are wanted."""
        if self._period is not None:
            self._events.at(0, self._take)

    def _take(self, time: int) -> None:
        assert self._period is not None
        queued = self._gateway.dispatch.waiting
        for account in self._gateway.accounts.replicas:
            gauges, stats = account.replica.gauges(time), account.replica.scheduler.stats()
            # Of a process that is gone, the scheduler's last figures are still there.
            up = account.replica.up
            self.samples.append(
                Sample(
                    time / NANOSECONDS,
                    account.name,
                    (gauges.running or 0) if up else 0,
                    (gauges.waiting or 0) if up else 0,
                    (gauges.kv_usage or 0.0) if up else 0.0,
                    stats.hit_tokens,
                    stats.queried_tokens,
                    queued,
                    account.state.available and account.replica.up,
                )
            )
        self._events.at(time + self._period, self._take)


class TokenGaps:
    """Inter-token latencies of all requests together: how many tokens came after steps of each length."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def add(self, steps: int, duration: int, sequences: int) -> None:
        """Count `steps` steps of `duration` nanoseconds, each of which gave `sequences` further tokens."""
        if sequences:
            self._tokens[duration] = self._tokens.get(duration, 0) + steps * sequences

    def quantile(self, share: float) -> float | None:
        """Return the latency in seconds that so many of the tokens don't exceed; None: there are none."""
        if not self._tokens:
            return None
        durations = np.fromiter(self._tokens, dtype=np.int64, count=len(self._tokens))
        order = np.argsort(durations)
        counts: npt.NDArray[np.int64] = np.fromiter(self._tokens.values(), dtype=np.int64, count=len(order))[order]
        reached = int(np.searchsorted(np.cumsum(counts), share * float(counts.sum())))
        return float(durations[order][min(reached, len(order) - 1)]) / NANOSECONDS
