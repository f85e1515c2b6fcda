"""Log-probabilities of the model's own distribution.

They are the log-softmax of the raw logits, before bias, penalties, masks, temperature and truncation: what the
model believes, not what the sampler made of it (vLLM's default, `raw_logprobs`).
"""

import numpy as np
from numpy.typing import NDArray

from shoal.policy.batching.plan import TokenLogprobs


def log_normalizer(logits: NDArray[np.float32]) -> float:
    """log Σ exp(logits) of one row, accumulated in float64."""
    peak = np.float32(logits.max())
    return float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """The chosen token, then the `top` most likely (of tied ones the smaller ids), with the chosen token's rank.

    Tied tokens share the best rank: it is one more than the number of strictly likelier tokens.
    """
    normalizer = log_normalizer(logits)
    ids = [token, *top_tokens(logits, top)]
    values = logits[ids].astype(np.float64) - normalizer
    rank = int(np.count_nonzero(logits > logits[token])) + 1
    return TokenLogprobs(tuple(ids), tuple(values.tolist()), rank)


def top_tokens(logits: NDArray[np.float32], count: int) -> list[int]:
    """Ids of the `count` largest logits, largest first, smaller id first among equals."""
    count = min(count, logits.size)
    if count <= 0:
        return []
    bar = np.partition(logits, logits.size - count)[logits.size - count]
    candidates = np.flatnonzero(logits >= bar)
    order = np.lexsort((candidates, -logits[candidates]))
    best: list[int] = candidates[order[:count]].tolist()
    return best
