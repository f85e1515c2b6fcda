"""Quantiles and means of what was measured, with bootstrap intervals that respect how the values hang together.

Quantile: the nearest rank, i.e. the smallest measured value that at least this share of values does not exceed.

Interval: a circular block bootstrap (Politis & Romano 1992) over *owners* in the order of their schedule. An owner
is a request. Its gaps between tokens are resampled with it, and neighbours in time are resampled together, because
the queue makes them alike: resampling single gaps would claim far more certainty than there is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 1000
_BUDGET = 40_000_000
"""Values touched by all resamples together: bounds the time of the bootstrap to a second or two."""
_MIN_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured figure and its 95 % interval (None where there is too little to tell)."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a distribution."""

    level: float
    """0 to 1."""
    estimate: Estimate
    few: bool
    """Fewer than ten measured requests lie beyond it: the figure is an anecdote."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A set of measured values, in seconds unless its user says otherwise."""

    count: int
    mean: Estimate
    minimum: float
    maximum: float
    quantiles: tuple[Quantile, ...]

    def at(self, level: float) -> Estimate:
        """The quantile of this level, which must be one of those computed."""
        return next(q.estimate for q in self.quantiles if abs(q.level - level) < 1e-9)


LEVELS = (0.5, 0.9, 0.95, 0.99)
_FEW_BEYOND = 10


def quantile(values: Floats, level: float) -> float:
    """The nearest-rank quantile of one or more values."""
    return float(np.quantile(values, level, method="inverted_cdf"))


def block_length(owners: int) -> int:
    """Owners resampled together: the cube root of all, as the bootstrap of a variance asks for."""
    return max(1, round(float(owners ** (1 / 3))))


def resample_counts(owners: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each owner is drawn, [owners], of one resample after another; each sums to `owners`."""
    rng = np.random.default_rng(seed)
    length = block_length(owners)
    blocks = -(-owners // length)
    for _ in range(resamples):
        starts = rng.integers(owners, size=(blocks, 1))
        drawn = ((starts + np.arange(length)) % owners).reshape(-1)[:owners]
        yield np.bincount(drawn, minlength=owners)


def distribution(
    groups: Sequence[Floats], levels: Sequence[float] = LEVELS, seed: int = 0, resamples: int = RESAMPLES
) -> Distribution | None:
    """The distribution of all values of all owners (`groups`, in schedule order); None where there is no value.

    Args:
        resamples: of the bootstrap; 0: no intervals.
    """
    held = [g for g in groups if len(g)]
    if not held:
        return None
    owner = np.repeat(np.arange(len(held)), [len(g) for g in held])
    values = np.concatenate(held).astype(np.float64)
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    points = [quantile(values, level) for level in levels]
    mean = float(values.mean())
    lows: list[float | None] = [None] * (len(levels) + 1)
    highs = list(lows)
    if len(held) >= 3 and resamples:
        draws = _draws(values, owner, len(held), levels, seed, resamples)
        edges = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        lows, highs = edges[0].tolist(), edges[1].tolist()
    quantiles = tuple(
        Quantile(level, Estimate(point, low, high), round(len(held) * (1 - level), 6) < _FEW_BEYOND)
        for level, point, low, high in zip(levels, points, lows[1:], highs[1:], strict=True)
    )
    return Distribution(
        len(values), Estimate(mean, lows[0], highs[0]), float(values[0]), float(values[-1]), quantiles
    )


def _draws(
    values: Floats, owner: NDArray[np.int64], owners: int, levels: Sequence[float], seed: int, resamples: int
) -> Floats:
    """[resamples, 1 + levels]: mean and quantiles of every resample of sorted values."""
    resamples = max(_MIN_RESAMPLES, min(resamples, _BUDGET // len(values)))
    result = np.empty((resamples, 1 + len(levels)))
    for i, counts in enumerate(resample_counts(owners, resamples, seed)):
        weights = counts[owner]
        cumulative = np.cumsum(weights)
        total = cumulative[-1]
        # No dot product: BLAS would wake its threads for each.
        result[i, 0] = float(np.multiply(values, weights).sum()) / total
        places = np.searchsorted(cumulative, [np.ceil(level * total - 1e-9) for level in levels])
        result[i, 1:] = values[np.minimum(places, len(values) - 1)]
    return result


def mean_estimate(values: Floats, seed: int = 0, resamples: int = RESAMPLES, scale: float = 1.0) -> Estimate:
    """The mean of one value an owner (in schedule order), times `scale`, with its interval."""
    mean = float(values.mean()) * scale
    if len(values) < 3 or not resamples:
        return Estimate(mean)
    counts = resample_counts(len(values), resamples, seed)
    draws = np.fromiter(
        (np.multiply(row, values).sum() for row in counts), dtype=np.float64, count=resamples
    ) / len(values)
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(mean, float(low) * scale, float(high) * scale)


def ratio_estimate(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of paired ratios, one a round, with Student's interval on their logarithms."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    centre = float(np.exp(logs.mean()))
    if len(logs) < 2:
        return Estimate(centre)
    half = student_975(len(logs) - 1) * float(logs.std(ddof=1)) / float(np.sqrt(len(logs)))
    return Estimate(centre, float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half)))


def student_975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: a table to 10 degrees of freedom, then Cornish and Fisher's expansion."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    if freedom <= len(table):
        return table[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
