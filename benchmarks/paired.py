"""Several sides under the very same load: figures with intervals, and ratios whose intervals are of the pairs.

Every side answered the same sessions in every round. A resample draws sessions, the same ones for every side, so
that what a heavy or an unlucky session does to all sides cancels in their ratio. Sessions that are neighbours in
time are drawn together (see `shoal.workload.stats`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.workload.records import Record
from shoal.workload.stats import CONFIDENCE, Estimate, Floats, resample_counts

RESAMPLES = 1000
Weights = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Values:
    """A figure's raw values of one side, sorted, and which session each belongs to."""

    values: Floats
    owners: NDArray[np.int64]

    @classmethod
    def of(cls, sessions: Sequence[Sequence[Record]], read: Callable[[Record], float | None]) -> "Values":
        pairs = [(v, i) for i, records in enumerate(sessions) for r in records if (v := read(r)) is not None]
        pairs.sort()
        return cls(
            np.asarray([v for v, _ in pairs], dtype=np.float64), np.asarray([i for _, i in pairs], dtype=int)
        )

    def quantile(self, level: float, weights: Weights) -> float:
        """Nearest rank, every value as often as its session was drawn."""
        if not len(self.values):
            return float("nan")
        cumulative = np.cumsum(weights[self.owners])
        place = np.searchsorted(cumulative, np.ceil(level * cumulative[-1] - 1e-9))
        return float(self.values[min(int(place), len(self.values) - 1)])

    def total(self, weights: Weights) -> float:
        return float(self.values @ weights[self.owners])


Figure = Callable[[Weights], float]
"""A figure under weights of the sessions."""


def estimates(figures: Mapping[str, Figure], sessions: int, against: str, seed: int = 0) -> "Paired":
    """One figure of every side, and its ratio to that of the side `against`."""
    whole = np.ones(sessions, dtype=np.int64)
    draws = list(resample_counts(sessions, RESAMPLES, seed))
    points = {name: figure(whole) for name, figure in figures.items()}
    drawn = {name: np.asarray([figure(row) for row in draws]) for name, figure in figures.items()}
    base, base_drawn = points[against], drawn[against]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = {
            n: _interval(points[n] / base if base else float("nan"), d / base_drawn) for n, d in drawn.items()
        }
    return Paired({n: _interval(points[n], d) for n, d in drawn.items()}, ratios)


@dataclass(frozen=True, slots=True)
class Paired:
    values: dict[str, Estimate]
    ratios: dict[str, Estimate]
    """Each side over the one they are compared with."""


def _interval(point: float, drawn: Floats) -> Estimate:
    known = drawn[np.isfinite(drawn)]
    if len(known) < len(drawn) // 2:
        return Estimate(point)
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(point, float(low), float(high))
