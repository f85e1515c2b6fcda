"""Fitting the constants: robust least squares for physics, boosted trees for what is left.

Needs scipy (the `fit` extra); nothing at prediction time does.
"""

from dataclasses import dataclass

import numpy as np

from shoal.plan.boost import BoostSettings, fit_trees
from shoal.plan.engine_constants import (
    GROUPS,
    NAMES,
    PRIOR,
    STRENGTH,
    VARIES,
    Constants,
    from_link,
    to_link,
)
from shoal.plan.estimator import Array, feature_table
from shoal.plan.fit_cases import Cases
from shoal.plan.numeric import ARRAY
from shoal.plan.residual import Ensemble
from shoal.plan.serving import closed_loop

TPOT_NOISE, TTFT_NOISE = 0.1, 0.3
"""Residuals (in the logarithm) beyond which a row counts linearly, not squared."""
SHRINKAGE, OFFSET_SHRINKAGE = 10.0, 20.0
"""How firmly constants are held at their priors, and what engines, generations, precisions and modes have of their
own at nothing: chosen so that models and machines that were left out are predicted best (3 and 9: TPOT 18 % off
instead of 15 %, the median of models; 20 and 40: TTFT 5 points worse)."""
_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class _Slot:
    group: str
    level: str
    constant: str


def _slots(cases: Cases) -> list[_Slot]:
    found: list[_Slot] = []
    for index, group in enumerate(GROUPS):
        present = sorted({levels[index] for levels in cases.levels} - {"other"})
        found += [_Slot(group, level, name) for level in present for name in VARIES[group]]
    return found


@dataclass(frozen=True, slots=True)
class Physics:
    """Fitted constants on their link scale."""

    base: dict[str, float]
    offsets: dict[str, dict[str, dict[str, float]]]

    def constants(self, cases: Cases) -> Constants:
        """The constants of every case, as arrays."""
        columns = {name: np.full(len(cases.tpot), self.base[name]) for name in NAMES}
        for index, group in enumerate(GROUPS):
            for level, found in self.offsets.get(group, {}).items():
                here = np.array([levels[index] == level for levels in cases.levels], dtype=float)
                for name, offset in found.items():
                    columns[name] = columns[name] + offset * here
        return Constants(**{name: from_link(name, column, ARRAY) for name, column in columns.items()})


def fit_physics(cases: Cases, evaluations: int = 25) -> Physics:
    """Constants with ridge towards their priors and offsets towards zero, robust to rows gone wrong."""
    from scipy.optimize import least_squares

    slots = _slots(cases)
    prior = np.array([to_link(name, getattr(PRIOR, name)) for name in NAMES])
    hold = SHRINKAGE * np.array([STRENGTH.get(name, 1.0) for name in NAMES])
    member = [np.array([s.level == lv[GROUPS.index(s.group)] for lv in cases.levels], dtype=float) for s in slots]
    position = {name: index for index, name in enumerate(NAMES)}
    log_tpot, log_ttft = np.log(cases.tpot), np.log(cases.ttft)
    root = np.sqrt(cases.weight)
    ridge = np.concatenate([hold, np.full(len(slots), OFFSET_SHRINKAGE)])

    def ratios(columns: list[Array]) -> Array:
        """Residuals of TPOT then TTFT, in units of noise, for constants on their link scale (one column each)."""
        k = Constants(**{name: from_link(name, column, ARRAY) for name, column in zip(NAMES, columns, strict=True)})
        out = closed_loop(cases.work, cases.first, k, cases.load)
        return np.concatenate(
            [(np.log(out.tpot) - log_tpot) / TPOT_NOISE, (np.log(out.ttft) - log_ttft) / TTFT_NOISE]
        )

    def columns_of(p: Array) -> list[Array]:
        columns = [np.full(len(root), value) for value in p[: len(NAMES)]]
        for value, slot, here in zip(p[len(NAMES) :], slots, member, strict=True):
            columns[position[slot.constant]] = columns[position[slot.constant]] + value * here
        return columns

    def residuals(p: Array) -> Array:
        return np.concatenate([_soft(ratios(columns_of(p))) * np.tile(root, 2), ridge * (p - start)])

    def jacobian(p: Array) -> Array:
        """An offset moves its constant for its own cases alone: one difference a constant gives all columns."""
        columns = columns_of(p)
        here = ratios(columns)
        slope = _soft_slope(here) * np.tile(root, 2)
        by_constant = []
        for index in range(len(NAMES)):
            moved = [*columns[:index], columns[index] + _STEP, *columns[index + 1 :]]
            by_constant.append(slope * (ratios(moved) - here) / _STEP)
        by_offset = [
            by_constant[position[slot.constant]] * np.tile(rows, 2)
            for slot, rows in zip(slots, member, strict=True)
        ]
        return np.concatenate([np.column_stack(by_constant + by_offset), np.diag(ridge)])

    start = np.concatenate([prior, np.zeros(len(slots))])
    found = least_squares(residuals, start, jac=jacobian, max_nfev=evaluations, xtol=1e-6, ftol=1e-5).x
    offsets: dict[str, dict[str, dict[str, float]]] = {}
    for value, slot in zip(found[len(NAMES) :], slots, strict=True):
        offsets.setdefault(slot.group, {}).setdefault(slot.level, {})[slot.constant] = float(value)
    return Physics({name: float(v) for name, v in zip(NAMES, found, strict=False)}, offsets)


def _soft(ratio: Array) -> Array:
    """Residual whose square is a pseudo-Huber loss."""
    return np.sign(ratio) * np.sqrt(2.0 * (np.sqrt(1.0 + ratio * ratio) - 1.0))


def _soft_slope(ratio: Array) -> Array:
    """The derivative of `_soft`."""
    root = np.sqrt(1.0 + ratio * ratio)
    slope: Array = np.abs(ratio) / (root * np.maximum(np.abs(_soft(ratio)), 1e-12))
    return np.where(np.abs(ratio) < 1e-6, 1.0, slope)


@dataclass(frozen=True, slots=True)
class Correction:
    """Physics with its trees."""

    physics: Physics
    tpot: Ensemble
    ttft: Ensemble

    def residuals(self, cases: Cases, trust: tuple[float, float] = (1.0, 1.0)) -> tuple[Array, Array, Array]:
        """ln(measured ÷ predicted) of TPOT and of TTFT, and the feature table. `trust` is the share of the trees'
        corrections that applies."""
        out = closed_loop(cases.work, cases.first, self.physics.constants(cases), cases.load)
        table = feature_table(cases.work, cases.first, cases.load, cases.kind, out)
        tpot = np.log(cases.tpot / out.tpot) - trust[0] * self.tpot.many(table)
        ttft = np.log(cases.ttft / out.ttft) - trust[1] * self.ttft.many(table)
        return tpot, ttft, table


TPOT_TREES = BoostSettings(clip=0.2)
TTFT_TREES = BoostSettings(trees=120, clip=0.4)


def fit_correction(cases: Cases, evaluations: int = 25) -> Correction:
    """Physics, then trees on what it leaves."""
    bare = Correction(fit_physics(cases, evaluations), Ensemble(()), Ensemble(()))
    tpot, ttft, table = bare.residuals(cases)
    return Correction(
        bare.physics,
        fit_trees(table, tpot, cases.weight, cases.group, TPOT_TREES),
        fit_trees(table, ttft, cases.weight, cases.group, TTFT_TREES),
    )
