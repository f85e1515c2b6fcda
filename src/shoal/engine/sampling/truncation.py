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


def weights_of(logits: Floats, peak: float, temperature: float, out: Floats) -> Floats:
    """exp((logits - peak) / temperature), written to `out`; `peak` is the row's finite maximum."""
    np.subtract(logits, np.float32(peak), out=out)
    # A division by a small temperature may overflow to -inf, whose exponential is the right answer, 0.
    with np.errstate(over="ignore", under="ignore"):
        if temperature != 1.0:
            np.divide(out, np.float32(temperature), out=out)
        np.exp(out, out=out)
    return out


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
    head = weights[at_least(weights, kth_bound(weights, k))]
    return float(np.partition(head, head.size - k)[head.size - k])


def kth_bound(values: Floats, k: int) -> float:
    """A lower bound of the k-th largest value that few others reach; exact work is then left for those few.

    The k-th largest of the segments' maxima: k segments hold a value at least as large.
    """
    whole = values.size // _SEGMENT
    if k > whole:
        return -np.inf
    maxima = values[: whole * _SEGMENT].reshape(whole, _SEGMENT).max(axis=1)
    return float(np.partition(maxima, whole - k)[whole - k])


def at_least(values: Floats, bound: float) -> NDArray[np.int64]:
    """Indices of the values that are no smaller than `bound`, in order."""
    # Indices, for numpy gathers by index several times faster than by mask.
    return np.flatnonzero(values >= np.float32(bound))


def top_p_threshold(weights: Floats, top_p: float, floor: float = 0.0) -> float:
    """The weight of the last token of the smallest set, most likely first, whose mass reaches `top_p`.

    Mass is counted among weights >= `floor` only.
    """
    kept = weights[at_least(weights, floor)] if floor > 0 else weights
    total = float(kept.sum(dtype=np.float64))
    # Tokens below this bound weigh together less than (1 - p) of the mass, so the boundary lies above it: on
    # real logits this leaves a few hundred of some hundred thousand to sort.
    bound = (1.0 - top_p) * total / kept.size * (1 - 1e-6)
    head = np.sort(kept[at_least(kept, bound)])[::-1]
    mass = np.cumsum(head, dtype=np.float64)
    last = int(np.searchsorted(mass, top_p * total, side="left"))
    return float(head[min(last, head.size - 1)])


def draw(weights: Floats, threshold: float, uniform: float) -> int:
    """The token at `uniform` of the cumulative distribution over the kept tokens, in vocabulary order."""
    if threshold > 0:
        kept = at_least(weights, threshold)
        return int(kept[_invert(weights[kept], uniform)])
    masses = _segment_masses(weights)
    sums = np.cumsum(masses)
    target = uniform * float(sums[-1])
    segment = _first_above(sums, masses, target)
    before = float(sums[segment - 1]) if segment else 0.0
    start = segment * _SEGMENT
    inside = weights[start : start + _SEGMENT]
    return start + _first_above(np.cumsum(inside, dtype=np.float64), inside, target - before)


def _segment_masses(weights: Floats) -> NDArray[np.float64]:
    whole = weights.size // _SEGMENT * _SEGMENT
    masses = weights[:whole].reshape(-1, _SEGMENT).sum(axis=1, dtype=np.float64)
    return np.append(masses, weights[whole:].sum(dtype=np.float64)) if whole < weights.size else masses


def _invert(weights: Floats, uniform: float) -> int:
    sums = np.cumsum(weights, dtype=np.float64)
    return _first_above(sums, weights, uniform * float(sums[-1]))


def _first_above(sums: NDArray[np.float64], weights: NDArray[np.floating], target: float) -> int:
    """The first index whose cumulative sum exceeds `target`; the last with any weight if rounding leaves none."""
    index = int(np.searchsorted(sums, target, side="right"))
    return index if index < sums.size else int(np.flatnonzero(weights)[-1])
