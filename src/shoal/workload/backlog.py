"""Whether a server kept up with an open loop: its rate of completions against the rate of arrivals.

A short run at a rate above capacity can meet every latency objective: its queue had no time to grow. What it cannot
do is complete requests as fast as they arrive. Two lower bounds of the capacity are taken from a run of n requests,
at the k-th completion for every k from 80 % of n up:

- k ÷ (time since the window opened), which no server exceeds: evidence for this rate and every lower one;
- (k − 1) ÷ (that time − the latency of one request), which is the rate of arrivals where no queue grows. The
  latency is the median E2E of the first half. In a first-in-first-out queue overloaded by a share x the figure is
  at most 1 / (1 + 0.69 x) of the rate of arrivals, so that `KEPT_UP` lets at most 8 % of overload pass.
"""

from dataclasses import dataclass

import numpy as np

from shoal.workload.run import RunResult

KEPT_UP = 0.95
"""A rate was kept up with where this share of it was completed."""
_FROM = 0.8
_MIN_REQUESTS = 5
_MAX_LATENCY_SHARE = 0.25
"""Of the window: where a request takes longer than this, the window shows too little of the steady state."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Arrivals against completions of one open loop, in requests per second."""

    arrived: float
    """Measured requests ÷ window."""
    completed: float
    """A lower bound of the server's capacity."""
    sustained: float
    """Completions with the latency of one request taken off: `arrived` where no queue grew."""
    short: bool
    """The window is shorter than four median requests: a queue that grows can't be told from one that fills."""

    def kept_up(self, evidence: float = 0.0) -> bool:
        """Whether this rate of arrivals can last.

        Args:
            evidence: requests per second that the server completed in another run.
        """
        return max(self.sustained, self.completed, evidence) >= KEPT_UP * self.arrived


def backlog(result: RunResult) -> Backlog | None:
    """Return arrivals and completions of a run; None for a closed loop, a burst, or fewer than five requests."""
    measured = sorted(result.measured, key=lambda r: r.scheduled)
    if result.requested_rate is None or result.window <= 0 or len(measured) < _MIN_REQUESTS:
        return None
    half = measured[: len(measured) // 2]
    typical = float(np.median([r.ended - r.scheduled for r in half]))
    limit = result.window * _MAX_LATENCY_SHARE
    latency = min(typical, limit)
    ends = np.sort([r.ended - result.start for r in measured])
    first = max(1, int(np.ceil(_FROM * len(ends))) - 1)
    counts = np.arange(first + 1, len(ends) + 1)
    times = np.maximum(ends[first:], 1e-9)
    return Backlog(
        arrived=len(measured) / result.window,
        completed=float(np.max(counts / times)),
        sustained=float(np.max((counts - 1) / np.maximum(times - latency, 1e-9))),
        short=typical > limit,
    )
