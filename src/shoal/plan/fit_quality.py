"""How wide an interval must be, and how good a fit is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.plan.artifact import Quality
from shoal.plan.boost import BoostSettings, fit_trees
from shoal.plan.estimator import Array, Predictions
from shoal.plan.fit_cases import Cases
from shoal.plan.intervals import CLASSES, LEVELS, REGIMES, Index, Interval, IntervalCell
from shoal.plan.residual import Ensemble

SCALE_TREES = BoostSettings(trees=60, depth=4, rate=0.2, shrink=25.0, clip=1.5)
COVERAGE = 0.9
CELL_SHRINKAGE = 10.0
"""Weight, in rows, of a regime's quantiles in those of one class of hardware; and of all regimes' in a regime's."""
FEWEST = 30.0
"""Rows below which a regime's or a class's quantile is not taken from them."""
_ROUNDS = 12
_NOISE_FLOOR = 0.03


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of residuals that a case's features lead one to expect."""

    trees: Ensemble
    base: float

    def many(self, table: Array) -> Array:
        return np.exp(self.base + self.trees.many(table))


def fit_scale(table: Array, residual: Array, cases: Cases, counts: Array) -> Scale:
    """Trees on the logarithm of residuals of rows that a fit had not seen."""
    size = np.log(np.abs(residual) + _NOISE_FLOOR)
    base = float(np.average(size, weights=counts))
    return Scale(fit_trees(table, size - base, counts, cases.group, SCALE_TREES), base)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Residual ÷ scale of held-out predictions of one level, with where each stands (the scale of groups is 1)."""

    level: str
    tpot: Array
    ttft: Array
    regime: Index
    hardware: Index
    counts: Array
    fold: Index
    """What was left out together."""

    def without(self, fold: int) -> "Ratios":
        """The other folds."""
        mask = self.fold != fold
        return Ratios(self.level, *(getattr(self, name)[mask] for name in self.__slots__[1:]))


def interval_cells(found: Ratios) -> list[IntervalCell]:
    """Intervals that hold `COVERAGE` of the rows in each regime and on each class of hardware."""
    return _row_cells(found) if found.level == LEVELS[0] else _group_cells(found)


def _row_cells(found: Ratios) -> list[IntervalCell]:
    """The shortest intervals, by regime and class of hardware, with shrinkage towards those of more rows."""
    cells: list[IntervalCell] = []
    whole = np.full(len(found.counts), True)
    for number, regime in enumerate(REGIMES):
        here = found.regime == number
        values = []
        for ratio in (found.tpot, found.ttft):
            everywhere = _shortest(ratio, found.counts, whole, None)
            common = _shortest(ratio, found.counts, here, everywhere)
            own = [
                _shortest(ratio, found.counts, here & (found.hardware == c), common) for c in range(len(CLASSES))
            ]
            values.append([*own, common])
        for hardware, tpot, ttft in zip((*CLASSES, ""), *values, strict=True):
            cells.append(IntervalCell(found.level, regime, hardware, tpot, ttft))
    return cells


def _group_cells(found: Ratios) -> list[IntervalCell]:
    """Intervals of what was left out whole: the quantile of residuals of which none saw its own model or machine.

    Rows of one model err together, so that their middle says nothing of the next one: intervals lie around the
    prediction. That is the cross-conformal interval (Vovk 2015; CV+ of Barber et al. 2021) over groups, for each
    regime and class. A new generation is of no class.
    """
    classes = CLASSES if found.level != LEVELS[-1] else ()
    tpot, ttft = (
        (half_widths(ratio, found, True), half_widths(ratio, found, False)) for ratio in (found.tpot, found.ttft)
    )
    cells: list[IntervalCell] = []
    for number, regime in enumerate(REGIMES):
        places = [*((name, 0, place) for place, name in enumerate(classes)), ("", 1, 0)]
        for hardware, which, place in places:
            ends = [round(float(half[which][number, place]), 4) for half in (tpot, ttft)]
            cells.append(IntervalCell(found.level, regime, hardware, *(Interval(-end, end) for end in ends)))
    return cells


def half_widths(ratio: Array, found: Ratios, by_class: bool) -> Array:
    """Multiples of the scale [regimes, classes + 1] within which lie `COVERAGE` of each regime's rows, and of each
    class's.

    A regime has one factor and a class another, found in turn until both hold. What has too few rows for a quantile
    keeps the factor of all.
    """
    size = np.abs(ratio)
    place = found.hardware if by_class else np.zeros_like(found.hardware)
    width = np.full((len(REGIMES), len(CLASSES) + 1), weighted_quantile(size, found.counts, COVERAGE))
    for _ in range(_ROUNDS):
        for axis, labels in enumerate((found.regime, place)):
            for label in range(width.shape[axis]):
                rows = labels == label
                if found.counts[rows].sum() >= FEWEST:
                    excess = size[rows] / width[found.regime[rows], place[rows]]
                    at = (label, slice(None)) if axis == 0 else (slice(None), label)
                    width[at] *= weighted_quantile(excess, found.counts[rows], COVERAGE)
    return width


def _shortest(ratio: Array, counts: Array, mask: Mask, around: Interval | None) -> Interval:
    """The quantiles with `COVERAGE` between them that lie nearest each other, shrunk towards those of `around`."""
    values, weight = ratio[mask], counts[mask]
    if not len(values):
        assert around is not None, "a level has rows"
        return around
    order = np.argsort(values)
    values, reached = values[order], np.cumsum(weight[order]) / weight.sum()

    def at(share: float) -> float:
        return float(values[min(int(np.searchsorted(reached, share)), len(values) - 1)])

    # Of n rows the next one falls between any two neighbours with probability 1/(n + 1).
    share = min(COVERAGE * (1.0 + 1.0 / float(weight.sum())), 0.98)
    low, high = min(((at(s), at(s + share)) for s in np.linspace(0.005, 0.995 - share, 33)), key=_length)
    if around is None:
        return Interval(round(low, 4), round(high, 4))
    own = float(weight.sum()) / (float(weight.sum()) + CELL_SHRINKAGE)
    return Interval(round(own * low + (1 - own) * around.low, 4), round(own * high + (1 - own) * around.high, 4))


def _length(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


def weighted_quantile(values: Array, weight: Array, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


def quality_of(found: Predictions, cases: Cases, counts: Array, mask: Mask) -> Quality:
    """Errors over the rows of a mask (each distinct case counted as often as it occurs)."""
    weight = counts[mask]

    def mean(values: Any) -> float:
        return round(float(np.average(values, weights=weight)), 4)

    figures: dict[str, float] = {}
    for name, measured in (("tpot", cases.tpot[mask]), ("ttft", cases.ttft[mask])):
        point, low, high = (getattr(found, name + suffix)[mask] for suffix in ("", "_low", "_high"))
        error = np.abs(point / measured - 1.0)
        figures[f"{name}_median"] = round(weighted_quantile(error, weight, 0.5), 4)
        figures[f"{name}_mean"] = mean(error)
        figures[f"{name}_coverage"] = mean((low <= measured) & (measured <= high))
        figures[f"{name}_width"] = round(weighted_quantile(high / low, weight, 0.5), 2)
    return Quality(rows=int(weight.sum()), **figures)


def slices(regime: Index, hardware: Index, counts: Array) -> Mapping[str, Mask]:
    """What a table has a line for: all, those with known workers, each regime, each class of hardware."""
    assumed = REGIMES.index("split, workers assumed")
    found = {"all": np.full(len(counts), True), "workers known": regime != assumed}
    found |= {name: regime == number for number, name in enumerate(REGIMES)}
    found |= {name: hardware == number for number, name in enumerate(CLASSES)}
    return {name: mask for name, mask in found.items() if mask.any()}


def qualities(found: Predictions, cases: Cases, counts: Array, where: Sequence[Index]) -> dict[str, Quality]:
    """The quality of every slice; `where` is (regime, class of hardware) of each case."""
    return {
        name: quality_of(found, cases, counts, mask) for name, mask in slices(where[0], where[1], counts).items()
    }
