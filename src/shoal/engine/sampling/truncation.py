"""From one row of logits to one token: top-k, top-p, min-p, and the draw.

Everything here works on `weights`, exp(logit - peak) of one row in vocabulary order: the most likely token weighs
1. Each truncation is then a threshold, and the kept set is {i : weights[i] >= threshold}. A set defined by values
alone does not depend on a sort's order, so **tied tokens are kept or dropped together**: all tokens as likely as
the k-th most likely one pass top-k, and all as likely as the last one the nucleus needs pass top-p.

The order is top-k, top-p on what is left, min-p, as in Hugging Face's processors.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.engine.sampling.params import SamplingParams

Floats = NDArray[np.float32]
_SEGMENT = 256
"""Tokens summed together before the draw looks inside one segment."""


def weights_of(logits: Floats, peak: float, temperature: float) -> Floats:
    """exp((logits - peak) / temperature); `peak` is the row's finite maximum."""
    weights: Floats = logits - np.float32(peak)
    # A division by a small temperature may overflow to -inf, whose exponential is the right answer, 0.
    with np.errstate(over="ignore", under="ignore"):
        weights /= np.float32(temperature)
        np.exp(weights, out=weights)
    return weights


def threshold_of(weights: Floats, params: SamplingParams) -> float:
    """The smallest weight kept; 0 keeps all."""
    threshold = 0.0
    if 0 < params.top_k < weights.size:
        threshold = top_k_threshold(weights, params.top_k)
    if params.top_p < 1.0:
        threshold = max(threshold, top_p_threshold(weights, params.top_p, threshold))
    return max(threshold, params.min_p)


def top_k_threshold(weights: Floats, k: int) -> float:
    """The k-th largest weight."""
    return float(np.partition(weights, weights.size - k)[weights.size - k])


def top_p_threshold(weights: Floats, top_p: float, floor: float = 0.0) -> float:
    """The weight of the last token of the smallest set, most likely first, whose mass reaches `top_p`.

    Mass is counted among weights >= `floor` only.
    """
    kept = weights[weights >= floor] if floor > 0 else weights
    total = float(kept.sum(dtype=np.float64))
    # Tokens below this bound weigh together less than (1 - p) of the mass, so the boundary lies above it: on real
    # logits this leaves a few hundred of some hundred thousand to sort.
    bound = (1.0 - top_p) * total / kept.size
    head = np.sort(kept[kept >= bound])[::-1]
    mass = np.cumsum(head, dtype=np.float64)
    last = int(np.searchsorted(mass, top_p * total, side="left"))
    return float(head[min(last, head.size - 1)])


def draw(weights: Floats, threshold: float, uniform: float) -> int:
    """The token at `uniform` of the cumulative distribution over the kept tokens, in vocabulary order."""
    if threshold > 0:
        kept = np.flatnonzero(weights >= np.float32(threshold))
        return int(kept[_invert(weights[kept], uniform)])
    starts = np.arange(0, weights.size, _SEGMENT)
    masses = np.add.reduceat(weights, starts, dtype=np.float64)
    sums = np.cumsum(masses)
    target = uniform * float(sums[-1])
    segment = _first_above(sums, masses, target)
    before = float(sums[segment - 1]) if segment else 0.0
    start = int(starts[segment])
    inside = weights[start : start + _SEGMENT]
    return start + _first_above(np.cumsum(inside, dtype=np.float64), inside, target - before)


def _invert(weights: Floats, uniform: float) -> int:
    sums = np.cumsum(weights, dtype=np.float64)
    return _first_above(sums, weights, uniform * float(sums[-1]))


def _first_above(sums: NDArray[np.float64], weights: NDArray[np.floating], target: float) -> int:
    """The first index whose cumulative sum exceeds `target`; the last with any weight if rounding leaves none."""
    index = int(np.searchsorted(sums, target, side="right"))
    return index if index < sums.size else int(np.flatnonzero(weights)[-1])
