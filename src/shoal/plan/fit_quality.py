"""How wide an interval must be, and how good a fit is."""

from typing import Any

import numpy as np

from shoal.plan.artifact import Interval, Quality
from shoal.plan.boost import BoostSettings, fit_trees
from shoal.plan.estimator import Array, Predictions
from shoal.plan.fit_cases import Cases
from shoal.plan.residual import Ensemble

SCALE_TREES = BoostSettings(trees=25, depth=3, rate=0.2, shrink=40.0, clip=1.5)
HELD_OUT_WEIGHT = 0.75
"""Share of the interval's quantiles that residuals of unseen groups decide; the fit's own decide the rest."""


def fit_interval(
    table: Array, inside: Array, held: Array, cases: Cases, counts: Array
) -> tuple[Ensemble, float, Interval]:
    """A scale that depends on the case, and the quantiles of residual ÷ scale.

    The scale is learnt from residuals of folds that had not seen the group, which is where a new row stands. The
    quantiles weigh those residuals more than the fit's own: new rows will be some of both, and the interval should
    hold 90 % of either within a few points.
    """
    size = np.log(np.abs(held) + 0.02)
    base = float(np.average(size, weights=counts))
    trees = fit_trees(table, size - base, counts, cases.group, SCALE_TREES)
    scale = np.exp(base + trees.many(table)) * cases.width
    ratio = np.concatenate([inside / scale, held / scale])
    weight = np.concatenate([counts * (1 - HELD_OUT_WEIGHT), counts * HELD_OUT_WEIGHT])
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
