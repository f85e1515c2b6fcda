"""Log-probabilities of the model's own distribution.

They are the log-softmax of the raw logits, before bias, penalties, masks, temperature and truncation: what the
model believes, not what the sampler made of it (vLLM's default, `raw_logprobs`).
"""

import numpy as np
from numpy.typing import NDArray

from shoal.engine.sampling.truncation import at_least, kth_bound, weights_of
from shoal.policy.batching.plan import TokenLogprobs


def log_normalizer(logits: NDArray[np.float32], scratch: NDArray[np.float32]) -> float:
    """log Σ exp(logits) of one row, accumulated in float64; `scratch` is a row to work in."""
    peak = float(logits.max())
    return peak + float(np.log(weights_of(logits, peak, 1.0, scratch).sum(dtype=np.float64)))


def token_logprobs(
    logits: NDArray[np.float32], token: int, top: int, scratch: NDArray[np.float32]
) -> TokenLogprobs:
    """The chosen token, then the `top` most likely (of tied ones the smaller ids), with the chosen token's rank.

    Tied tokens share the best rank: it is one more than the number of strictly likelier tokens.
    """
    normalizer = log_normalizer(logits, scratch)
    ids = [token, *top_tokens(logits, top)]
    values = logits[ids].astype(np.float64) - normalizer
    rank = int(np.count_nonzero(logits > logits[token])) + 1
    return TokenLogprobs(tuple(ids), tuple(values.tolist()), rank)


def top_tokens(logits: NDArray[np.float32], count: int) -> list[int]:
    """Ids of the `count` largest logits, largest first, smaller id first among equals."""
    count = min(count, logits.size)
    if count <= 0:
        return []
    candidates = at_least(logits, kth_bound(logits, count))
    order = np.lexsort((candidates, -logits[candidates]))
    best: list[int] = candidates[order[:count]].tolist()
    return best
