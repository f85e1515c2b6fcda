"""The whole fit: constants on all rows, fits that leave some out, intervals from what these miss, and their
quality.

Each way of leaving out stands for one level of knowledge (`intervals.LEVELS`): rows at random for a case that was
measured at another load, whole machines, whole models, whole engines, whole generations. The intervals of a level
come from its held-out residuals. Its quality is reported with these; for whole machines and models also with the
intervals that the other folds alone give, so that nothing left out has a part in the width that it is held against.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.plan.artifact import VERSION, Artifact, Quality, tables
from shoal.plan.estimator import Array, Predictions, ServingEstimator
from shoal.plan.fit import Correction, Physics, fit_correction
from shoal.plan.fit_cases import Cases, cases_of, group_name
from shoal.plan.fit_quality import Ratios, fit_scale, interval_cells, qualities
from shoal.plan.intervals import (
    LEVELS,
    TRUST,
    Familiarity,
    Index,
    IntervalCell,
    model_key,
    regimes_of,
)
from shoal.plan.residual import FEATURES
from shoal.plan.rows import Row, distinct
from shoal.plan.serving import closed_loop

ROW_FOLDS = 4
LEFT_OUT = dict(zip(LEVELS, ("rows", "machines", "models", "engines", "generations"), strict=True))
"""What is left out of the fits that stand for a level."""

BLIND = ", intervals too"
"""What is left out has no part in the interval's width either."""


@dataclass(frozen=True, slots=True)
class Fit:
    """An artifact and the cases that it was fitted to."""

    artifact: Artifact
    cases: Cases


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """What fits that left each fold out say of it."""

    level: str
    fold: Index
    parts: tuple[Correction, ...]
    tpot: Array
    ttft: Array
    """ln(measured ÷ predicted)."""
    regime: Index
    """As those fits see it."""


def fold_names(rows: Sequence[Row], level: str) -> list[str]:
    """The fold of each row: what a fit of this level leaves out together with it."""
    if level == "machine":
        return [row.deployment.accelerator.name for row in rows]
    if level == "model":
        return [model_key(row.deployment) for row in rows]
    if level == "engine":
        return [row.backend for row in rows]
    if level == "generation":
        return [row.deployment.accelerator.architecture for row in rows]
    return [str(n) for n in np.random.default_rng(20260701).integers(0, ROW_FOLDS, len(rows))]


def fit_rows(rows: Sequence[Row], source: str, date: str, evaluations: int = 25) -> Fit:
    """Constants, intervals and quality from measured rows. Takes minutes."""
    merged = distinct(rows)
    once, counts = [row for row, _ in merged], np.array([count for _, count in merged])
    cases = cases_of(once, [count**0.5 for _, count in merged])
    whole = fit_correction(cases, evaluations)
    out = closed_loop(cases.work, cases.first, whole.physics.constants(cases), cases.load)
    regime, hardware = regimes_of(cases.load, out), np.asarray(cases.known.hardware, dtype=np.intp)
    _, _, table = whole.residuals(cases)
    held = [_leave_out(cases, fold_names(once, level), level, evaluations, whole) for level in LEVELS]
    scales = fit_scale(table, held[0].tpot, cases, counts), fit_scale(table, held[0].ttft, cases, counts)
    size = scales[0].many(table), scales[1].many(table)
    ratios = [
        Ratios(
            held[0].level, held[0].tpot / size[0], held[0].ttft / size[1], regime, hardware, counts, held[0].fold
        ),
        *(Ratios(h.level, h.tpot, h.ttft, h.regime, hardware, counts, h.fold) for h in held[1:]),
    ]
    cells = [cell for r in ratios for cell in interval_cells(r)]

    def artifact(
        part: Correction, intervals: Sequence[IntervalCell], quality: dict[str, dict[str, Quality]]
    ) -> Artifact:
        return Artifact(
            version=VERSION, fitted=date, source=source, base=part.physics.base, offsets=part.physics.offsets,
            features=FEATURES, tpot_trees=tables(part.tpot), ttft_trees=tables(part.ttft),
            tpot_scale=tables(scales[0].trees), ttft_scale=tables(scales[1].trees),
            scale_base=(scales[0].base, scales[1].base), intervals=tuple(intervals),
            seen=tuple(sorted({group_name(row) for row in once})), engines=tuple(sorted({r.backend for r in once})),
            quality=quality,
        )  # fmt: skip

    inside = predict_cases(artifact(whole, cells, {}), cases, LEVELS[0])
    quality = {"nothing": qualities(inside, cases, counts, (regime, hardware))}
    for h, r in zip(held, ratios, strict=True):
        around, apart = [], []
        for number, part in enumerate(h.parts):
            others = interval_cells(r.without(number))
            apart.append(predict_cases(artifact(part, others, {}), cases, h.level))
            around.append(predict_cases(artifact(part, cells, {}), cases, h.level))
        where, name = (h.regime, hardware), LEFT_OUT[h.level]
        blind = qualities(_assemble(apart, h.fold), cases, counts, where)
        # Rows at random need no intervals of their own: a quarter of the rows moves no quantile.
        quality[name] = (
            blind if h.level == LEVELS[0] else qualities(_assemble(around, h.fold), cases, counts, where)
        )
        if h.level in ("machine", "model"):
            quality[name + BLIND] = blind
    return Fit(artifact(whole, cells, quality), cases)


def _leave_out(cases: Cases, names: Sequence[str], level: str, evaluations: int, whole: Correction) -> _HeldOut:
    found = sorted(set(names))
    fold = np.array([found.index(name) for name in names], dtype=np.intp)
    if len(found) < 2:
        # Nothing can be left out: the level's intervals are those of the rows.
        names = [str(n) for n in np.random.default_rng(1).integers(0, ROW_FOLDS, len(names))]
        return _leave_out(cases, names, level, evaluations, whole)
    parts = tuple(fit_correction(cases.take(fold != f), evaluations) for f in range(len(found)))
    outside = [part.residuals(cases, TRUST[level]) for part in parts]
    regimes = [
        regimes_of(cases.load, closed_loop(cases.work, cases.first, part.physics.constants(cases), cases.load))
        for part in parts
    ]
    tpot, ttft = np.choose(fold, [o[0] for o in outside]), np.choose(fold, [o[1] for o in outside])
    return _HeldOut(level, fold, parts, tpot, ttft, np.choose(fold, regimes))


def predict_cases(artifact: Artifact, cases: Cases, level: str) -> Predictions:
    """What a set of constants predicts for the cases, with the intervals of a level."""
    estimator = ServingEstimator(artifact)
    k = Physics(artifact.base, artifact.offsets).constants(cases)
    ones = np.ones(len(cases.tpot))
    tpot, ttft = TRUST[level]
    known = Familiarity(
        ones * LEVELS.index(level), cases.known.hardware, ones, tpot_trust=ones * tpot, ttft_trust=ones * ttft
    )
    return estimator.evaluate(cases.work, cases.first, cases.load, k, cases.kind, known)


def _assemble(parts: Sequence[Predictions], fold: Index) -> Predictions:
    names = [name for name in Predictions.__dataclass_fields__ if name != "outcome"]
    columns = {name: np.choose(fold, [getattr(part, name) for part in parts]) for name in names}
    return Predictions(**columns, outcome=parts[0].outcome)
