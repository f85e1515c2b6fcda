"""Fitting the residual trees: gradient boosting of oblivious trees with a robust loss, in numpy.

Each tree is grown on a random half of the groups (a model on a machine), so that a split which helps one
group only rarely survives.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.plan.residual import Ensemble, Tree

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class BoostSettings:
    trees: int = 60
    depth: int = 4
    rate: float = 0.25
    shrink: float = 15.0
    """Weight of rows that a leaf's answer is shrunk by, towards no correction."""
    clip: float = 0.25
    """Residuals beyond this (in the logarithm) pull no harder: outliers are measurements gone wrong."""
    bins: int = 24
    share: float = 0.5
    seed: int = 20260701


def fit_trees(table: Array, target: Array, weight: Array, group: Index, settings: BoostSettings) -> Ensemble:
    """Trees whose sum approximates `target` [cases] from `table` [cases, features]."""
    rng = np.random.default_rng(settings.seed)
    cuts = [_cuts(table[:, f], settings.bins) for f in range(table.shape[1])]
    binned = np.stack([np.searchsorted(cut, table[:, f], side="left") for f, cut in enumerate(cuts)], axis=1)
    groups = np.unique(group)
    left = target.copy()
    trees: list[Tree] = []
    for _ in range(settings.trees):
        kept = rng.choice(groups, max(1, round(settings.share * len(groups))), replace=False)
        active = weight * np.isin(group, kept)
        pull = np.clip(left, -settings.clip, settings.clip)
        splits, leaf = _grow(binned, cuts, active * pull, active, settings)
        size = 1 << len(splits)
        force = np.bincount(leaf, active * pull, size)
        mass = np.bincount(leaf, active, size)
        values = settings.rate * force / (mass + settings.shrink)
        left -= values[leaf]
        trees.append(Tree(tuple(splits), tuple(float(round(v, 6)) for v in values)))
    return Ensemble(tuple(trees))


def _cuts(column: Array, bins: int) -> Array:
    """Thresholds between distinct values, at most `bins` of them, evenly dealt."""
    values = np.unique(column)
    if len(values) < 2:
        return np.array([])
    middles = (values[1:] + values[:-1]) / 2
    if len(middles) <= bins:
        return np.round(middles, 6)
    picks = np.quantile(column, np.linspace(0, 1, bins + 2)[1:-1])
    return np.unique(np.round(picks, 6))


def _grow(
    binned: Index, cuts: list[Array], force: Array, mass: Array, settings: BoostSettings
) -> tuple[list[tuple[int, float]], Index]:
    """Questions chosen one by one, each the best for all leaves together, and each case's leaf."""
    leaf = np.zeros(len(force), dtype=np.intp)
    splits: list[tuple[int, float]] = []
    for level in range(settings.depth):
        best = (0.0, -1, -1)
        for feature, cut in enumerate(cuts):
            if len(cut) == 0:
                continue
            gains = _gains(binned[:, feature], leaf, 1 << level, len(cut) + 1, force, mass, settings.shrink)
            at = int(np.argmax(gains))
            if gains[at] > best[0] + 1e-12:
                best = (float(gains[at]), feature, at)
        _, feature, at = best
        if feature < 0:
            break
        splits.append((feature, float(cuts[feature][at])))
        leaf |= (binned[:, feature] > at).astype(np.intp) << level
    return splits, leaf


def _gains(column: Index, leaf: Index, leaves: int, bins: int, force: Array, mass: Array, shrink: float) -> Array:
    """For each cut of one feature: how much squared pull the two sides of every leaf would explain."""
    cell = leaf * bins + column
    f = np.cumsum(np.bincount(cell, force, leaves * bins).reshape(leaves, bins), axis=1)
    m = np.cumsum(np.bincount(cell, mass, leaves * bins).reshape(leaves, bins), axis=1)
    below, under = f[:, :-1], m[:, :-1]
    above, over = f[:, -1:] - below, m[:, -1:] - under
    gains: Array = (below**2 / (under + shrink) + above**2 / (over + shrink)).sum(axis=0)
    return gains
