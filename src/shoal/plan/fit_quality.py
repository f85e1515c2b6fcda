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
CELL_SHRINKAGE = 60.0
"""Weight, in rows, of a regime's quantiles in those of one class of hardware; and of all regimes' in a regime's."""
_NOISE_FLOOR = 0.03


@dataclass(frozen=True, slots=True)
class Widening:
    """Factors on the logarithmic width of intervals."""

    tpot: float = 1.0
    ttft: float = 1.0


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
    """Residual ÷ scale of held-out predictions of one level, with where each stands."""

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


def interval_cells(found: Ratios, widening: Mapping[str, Widening]) -> list[IntervalCell]:
    """The shortest intervals that hold `COVERAGE` of the rows, by regime, widened, with shrinkage.

    A class of hardware has cells of its own where rows are left out at random; elsewhere there are too few things
    left out to tell classes apart.
    """
    cells: list[IntervalCell] = []
    whole = np.full(len(found.counts), True)
    classes = CLASSES if found.level == LEVELS[0] else ()
    for number, regime in enumerate(REGIMES):
        here = found.regime == number
        values = []
        for name, ratio in (("tpot", found.tpot), ("ttft", found.ttft)):
            everywhere = _shortest(ratio, found.counts, whole, None)
            common = _shortest(ratio, found.counts, here, everywhere)
            own = [
                _shortest(ratio, found.counts, here & (found.hardware == c), common) for c in range(len(classes))
            ]
            factor = getattr(widening[regime], name)
            values.append([_widened(interval, factor) for interval in (*own, common)])
        for hardware, tpot, ttft in zip((*classes, ""), *values, strict=True):
            cells.append(IntervalCell(found.level, regime, hardware, tpot, ttft))
    return cells


def _widened(interval: Interval, factor: float) -> Interval:
    middle, half = (interval.low + interval.high) / 2.0, (interval.high - interval.low) / 2.0
    return Interval(round(middle - half * factor, 4), round(middle + half * factor, 4))


def widening_of(found: Ratios) -> dict[str, Widening]:
    """By how much each regime's intervals are widened so that what is left out falls into those of the rest.

    Rows of one model or machine err together, and a level has few of them: quantiles over the rows of some hold
    fewer than `COVERAGE` of the next one's. The factor is the smallest at which the intervals of the other folds
    hold that many of each fold, with a regime's shrunk towards that of all. Rows left out at random need none.
    """
    none = {regime: Widening() for regime in REGIMES}
    if found.level == LEVELS[0]:
        return none
    excess = {"tpot": np.zeros(len(found.counts)), "ttft": np.zeros(len(found.counts))}
    for fold in np.unique(found.fold):
        for cell in interval_cells(found.without(int(fold)), none):
            rows = (found.fold == fold) & (found.regime == REGIMES.index(cell.regime))
            for name in excess:
                interval: Interval = getattr(cell, name)
                middle, half = (interval.low + interval.high) / 2.0, (interval.high - interval.low) / 2.0
                excess[name][rows] = np.abs(getattr(found, name)[rows] - middle) / max(half, 1e-9)
    factors: dict[str, Widening] = {}
    for number, regime in enumerate(REGIMES):
        rows = found.regime == number
        weight = float(found.counts[rows].sum())
        own = weight / (weight + CELL_SHRINKAGE / 6.0)
        parts = {}
        for name, values in excess.items():
            everywhere = weighted_quantile(values, found.counts, COVERAGE)
            here = weighted_quantile(values[rows], found.counts[rows], COVERAGE) if rows.any() else everywhere
            parts[name] = max(1.0, here**own * everywhere ** (1.0 - own))
        factors[regime] = Widening(**parts)
    return factors


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

    low, high = min(((at(s), at(s + COVERAGE)) for s in np.linspace(0.01, 0.99 - COVERAGE, 33)), key=_length)
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
