"""The highest rate of arrivals that an endpoint serves within its objectives."""

import math
from dataclasses import dataclass

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive
from shoal.workload.summary import Summary

_MAX_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class Point:
    """One rate and what came of it."""

    rate: float
    summary: Summary
    meets: bool
    close: bool
    """The interval of the attained share holds the share asked for: it could have gone the other way."""
    kept_up: bool = True
    """Requests were completed as fast as they arrived: the rate can last (`backlog.py`)."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    points: tuple[Point, ...]
    """In the order they were run."""
    best: float | None
    """The highest rate that met the objectives, and again when repeated; None: none did."""
    failing: float | None
    """The lowest rate that did not; None: all did."""
    confirmed: bool
    """The best rate was run twice and met them twice."""
    partial: bool


class RateSearch:
    """Decides which rate to try next: doubling or halving to a bracket, then bisection on a logarithmic scale.

    A rate that passed and fails when repeated counts as failing, and so does everything above it.
    """

    def __init__(self, start: float, tolerance: float = 0.1, most: int = 12) -> None:
        self._start = positive("rate", start, 1e6)
        if not 0 < tolerance <= 1:
            raise SpecError("tolerance", tolerance, "a share above 0 and at most 1")
        if most < 1:
            raise SpecError("points", most, "1 or more")
        self._tolerance = tolerance
        self._left = most
        self._passed: dict[float, int] = {}
        self._failed: set[float] = set()

    @property
    def best(self) -> float | None:
        return max(self._passed, default=None)

    @property
    def failing(self) -> float | None:
        return min(self._failed, default=None)

    @property
    def confirmed(self) -> bool:
        return self.best is not None and self._passed[self.best] > 1

    def next_rate(self) -> float | None:
        """The rate to try; None: the answer is known as well as asked for, or the points are used up."""
        if self._left <= 0:
            return None
        best, failing = self.best, self.failing
        if best is None and failing is None:
            return self._start
        if best is None:
            assert failing is not None
            lowest = self._start / 2**_MAX_DOUBLINGS
            return failing / 2 if failing / 2 >= lowest * 0.999 else None
        if failing is None:
            return best * 2 if best < self._start * 2**_MAX_DOUBLINGS * 0.999 else self._confirm(best)
        if failing / best > 1 + self._tolerance:
            return math.sqrt(best * failing)
        return self._confirm(best)

    def _confirm(self, best: float) -> float | None:
        return None if self.confirmed else best

    def record(self, rate: float, meets: bool) -> None:
        """What came of a rate."""
        self._left -= 1
        if meets:
            self._passed[rate] = self._passed.get(rate, 0) + 1
            self._failed = {f for f in self._failed if f > rate}
        else:
            self._failed.add(rate)
            self._passed = {p: n for p, n in self._passed.items() if p < rate}


def judged(rate: float, summary: Summary, evidence: float = 0.0) -> Point:
    """Judge a run at this rate: enough of its requests met all objectives, and the server kept up with them.

    Args:
        evidence: requests per second that the server completed in other runs.
    """
    share, attained = summary.objectives.share, summary.attained
    close = attained.low is not None and attained.high is not None and attained.low < share <= attained.high
    kept_up = summary.backlog is None or summary.backlog.kept_up(evidence)
    return Point(rate, summary, attained.value >= share and kept_up, close, kept_up)
