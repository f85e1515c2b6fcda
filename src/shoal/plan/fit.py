"""Fitting the constants: robust least squares for physics, boosted trees for what is left, conformal intervals.

Needs scipy (the `fit` extra); nothing at prediction time does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.plan.artifact import VERSION, Artifact, Interval, Quality, tables
from shoal.plan.boost import BoostSettings, fit_trees
from shoal.plan.deployment import load_of, prepare, stack_loads, stack_work
from shoal.plan.engine_constants import GROUPS, NAMES, PRIOR, STRENGTH, VARIES, Constants, from_link, generation_level, to_link
from shoal.plan.estimator import (
    Array,
    Predictions,
    ServingEstimator,
    feature_table,
    stack_kinds,
    width_factor,
)
from shoal.plan.numeric import ARRAY
from shoal.plan.pool_work import PoolWork
from shoal.plan.residual import FEATURES, Ensemble, Kind, kind_of
from shoal.plan.rows import Row, distinct
from shoal.plan.serving import Load, closed_loop

Index = npt.NDArray[np.intp]
TPOT_NOISE, TTFT_NOISE = 0.1, 0.3
"""Residuals (in the logarithm) beyond which a row counts linearly, not squared."""
SHRINKAGE = 3.0
OFFSET_SHRINKAGE = 9.0
FOLDS = 5
_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class Cases:
    """Rows as arrays: work, load, groups, weights and truth."""

    work: PoolWork
    first: PoolWork
    load: Load
    kind: Kind
    width: Array
    levels: tuple[tuple[str, ...], ...]
    """For each case its level in each of `GROUPS`."""
    weight: Array
    group: Index
    """The (architecture, system) it belongs to, as a number."""
    ttft: Array
    tpot: Array

    def take(self, mask: npt.NDArray[np.bool_]) -> "Cases":
        def pick(bundle: Any) -> Any:
            names = type(bundle).__dataclass_fields__
            return type(bundle)(**{name: getattr(bundle, name)[mask] for name in names})

        levels = tuple(level for level, kept in zip(self.levels, mask, strict=True) if kept)
        return Cases(
            pick(self.work), pick(self.first), pick(self.load), pick(self.kind), self.width[mask], levels,
            self.weight[mask], self.group[mask], self.ttft[mask], self.tpot[mask],
        )  # fmt: skip


def group_name(row: Row) -> str:
    """The model on a machine that a row belongs to; names of the same architecture are one model (R1 is V3)."""
    model = row.deployment.model
    return f"{model.hidden}x{model.layers}x{model.experts}|{row.system}"


def cases_of(rows: Sequence[Row], weights: Sequence[float]) -> Cases:
    """Rows stacked for fitting or scoring."""
    ready = [prepare(row.deployment) for row in rows]
    names = sorted({group_name(row) for row in rows})
    number = {name: index for index, name in enumerate(names)}
    return Cases(
        work=stack_work([r.work for r in ready]),
        first=stack_work([r.first for r in ready]),
        load=stack_loads([load_of(row.deployment) for row in rows]),
        kind=stack_kinds([kind_of(row.deployment) for row in rows]),
        width=np.array([width_factor(row.deployment) for row in rows]),
        levels=tuple(_levels(row) for row in rows),
        weight=np.array(weights, dtype=float),
        group=np.array([number[group_name(row)] for row in rows], dtype=np.intp),
        ttft=np.array([row.ttft for row in rows]),
        tpot=np.array([row.tpot for row in rows]),
    )


def _levels(row: Row) -> tuple[str, ...]:
    d = row.deployment
    return (d.backend, generation_level(d.accelerator.architecture), d.precision, d.mode)


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
            by_constant[position[slot.constant]] * np.tile(rows, 2) for slot, rows in zip(slots, member, strict=True)
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

    def residuals(self, cases: Cases) -> tuple[Array, Array, Array]:
        """ln(measured ÷ predicted) of TPOT and of TTFT, and the feature table."""
        out = closed_loop(cases.work, cases.first, self.physics.constants(cases), cases.load)
        table = feature_table(cases.work, cases.first, cases.load, cases.kind, out)
        tpot = np.log(cases.tpot / out.tpot) - self.tpot.many(table)
        ttft = np.log(cases.ttft / out.ttft) - self.ttft.many(table)
        return tpot, ttft, table


TPOT_TREES = BoostSettings(clip=0.2)
TTFT_TREES = BoostSettings(clip=0.4)
SCALE_TREES = BoostSettings(trees=25, depth=3, rate=0.2, shrink=40.0, clip=1.5)


def fit_correction(cases: Cases, evaluations: int = 25) -> Correction:
    """Physics, then trees on what it leaves."""
    bare = Correction(fit_physics(cases, evaluations), Ensemble(()), Ensemble(()))
    tpot, ttft, table = bare.residuals(cases)
    return Correction(
        bare.physics,
        fit_trees(table, tpot, cases.weight, cases.group, TPOT_TREES),
        fit_trees(table, ttft, cases.weight, cases.group, TTFT_TREES),
    )


def folds_of(cases: Cases, folds: int = FOLDS) -> Index:
    """A fold for each case, whole groups at a time, dealt largest first to the emptiest fold."""
    mass = np.bincount(cases.group, cases.weight)
    filled = np.zeros(folds)
    fold_of_group = np.zeros(len(mass), dtype=np.intp)
    for group in np.argsort(-mass, kind="stable"):
        fold = int(np.argmin(filled))
        fold_of_group[group] = fold
        filled[fold] += mass[group]
    return fold_of_group[cases.group]


@dataclass(frozen=True, slots=True)
class Fit:
    """An artifact and the held-out predictions that its intervals were set by."""

    artifact: Artifact
    held_out: Predictions
    """One a distinct case, from the fold that had not seen its group."""
    cases: Cases


def fit_rows(rows: Sequence[Row], source: str, date: str, evaluations: int = 25) -> Fit:
    """The whole fit: physics and trees on all rows, five folds, intervals, quality."""
    merged = distinct(rows)
    cases = cases_of([row for row, _ in merged], [count**0.5 for _, count in merged])
    counts = np.array([count for _, count in merged])
    whole = fit_correction(cases, evaluations)
    fold = folds_of(cases)
    parts = [fit_correction(cases.take(fold != f), evaluations) for f in range(FOLDS)]
    outside = [parts[f].residuals(cases) for f in range(FOLDS)]
    held_tpot = np.choose(fold, [o[0] for o in outside])
    held_ttft = np.choose(fold, [o[1] for o in outside])
    tpot, ttft, table = whole.residuals(cases)
    tpot_scale, tpot_base, tpot_interval = fit_interval(table, tpot, held_tpot, cases, counts)
    ttft_scale, ttft_base, ttft_interval = fit_interval(table, ttft, held_ttft, cases, counts)

    def artifact(part: Correction, quality: dict[str, Quality]) -> Artifact:
        return Artifact(
            version=VERSION, fitted=date, source=source, base=part.physics.base, offsets=part.physics.offsets,
            features=FEATURES, tpot_trees=tables(part.tpot), ttft_trees=tables(part.ttft),
            tpot_scale=tables(tpot_scale), ttft_scale=tables(ttft_scale), scale_base=(tpot_base, ttft_base),
            tpot_interval=tpot_interval, ttft_interval=ttft_interval, quality=quality,
        )  # fmt: skip

    inside = predict_cases(artifact(whole, {}), cases)
    held = _assemble([predict_cases(artifact(part, {}), cases) for part in parts], fold)
    quality = {
        "in_sample": quality_of(inside, cases, counts),
        "five_fold": quality_of(held, cases, counts),
    }
    return Fit(artifact(whole, quality), held, cases)


def predict_cases(artifact: Artifact, cases: Cases) -> Predictions:
    """What a set of constants predicts for the cases."""
    estimator = ServingEstimator(artifact)
    k = Physics(artifact.base, artifact.offsets).constants(cases)
    return estimator.evaluate(cases.work, cases.first, cases.load, k, cases.kind, cases.width)


def _assemble(parts: Sequence[Predictions], fold: Index) -> Predictions:
    names = [name for name in Predictions.__dataclass_fields__ if name != "outcome"]
    columns = {name: np.choose(fold, [getattr(part, name) for part in parts]) for name in names}
    return Predictions(**columns, outcome=parts[0].outcome)


def fit_interval(
    table: Array, inside: Array, held: Array, cases: Cases, counts: Array
) -> tuple[Ensemble, float, Interval]:
    """A scale that depends on the case, and the quantiles of residual ÷ scale.

    The scale is learnt from residuals of folds that had not seen the group, which is where a new row stands. The
    quantiles weigh those residuals and the fit's own alike: new rows will be some of both, and the interval
    should hold 90 % of either within a few points.
    """
    size = np.log(np.abs(held) + 0.02)
    base = float(np.average(size, weights=counts))
    trees = fit_trees(table, size - base, counts, cases.group, SCALE_TREES)
    scale = np.exp(base + trees.many(table)) * cases.width
    ratio = np.concatenate([inside / scale, held / scale])
    weight = np.concatenate([counts, counts])
    return trees, base, Interval(weighted_quantile(ratio, weight, 0.05), weighted_quantile(ratio, weight, 0.95))


def weighted_quantile(values: Array, weight: Array, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


def quality_of(found: Predictions, cases: Cases, counts: Array) -> Quality:
    """Errors over rows (each distinct case counted as often as it occurs)."""
    tpot = np.abs(found.tpot / cases.tpot - 1.0)
    ttft = np.abs(found.ttft / cases.ttft - 1.0)
    held = (found.tpot_low <= cases.tpot) & (cases.tpot <= found.tpot_high)
    caught = (found.ttft_low <= cases.ttft) & (cases.ttft <= found.ttft_high)

    def mean(values: Any) -> float:
        return round(float(np.average(values, weights=counts)), 4)

    return Quality(
        rows=int(counts.sum()),
        tpot_median=round(weighted_quantile(tpot, counts, 0.5), 4),
        tpot_mean=mean(tpot),
        tpot_coverage=mean(held),
        ttft_median=round(weighted_quantile(ttft, counts, 0.5), 4),
        ttft_mean=mean(ttft),
        ttft_coverage=mean(caught),
    )
