"""Attention over sequences that are striped over context-parallel ranks.

    queries of all ranks ──► attention to the keys that this rank has ──► partial outputs, log-sum-exp
                                                                              │ to the rows' owners
    own rows ◄── merged, weighted by exp(log-sum-exp) ◄───────────────────────┘

A rank may have none of the keys that a row sees: its log-sum-exp is then -inf and its output counts for nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.engine import ops
from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.parallel.group import Group
from shoal.specs.model import AttentionSpec


def attend(
    q: Tensor, kv: LayerKv, batch: Batch, cp: Group, spec: AttentionSpec, sinks: Tensor | None = None
) -> Tensor:
    """Attention of a layer: q [own rows, Q, D] -> [own rows, Q, Dv], over what all ranks of `cp` have cached."""
    settings = (spec.scale, spec.window, spec.softcap)
    stripe = batch.stripe
    if stripe is None:
        return ops.paged_attention(q, kv, batch, *settings, sinks)
    if not len(stripe.by_rank):
        return q.new_empty(0, q.shape[1], kv.v.shape[-1])
    everyone = cp.all_gather(q, 0, stripe.sizes).index_select(0, stripe.order)
    # A sink takes part in the softmax once.
    sinks = sinks if cp.index == 0 else None
    lse = everyone.new_empty(everyone.shape[:2], dtype=torch.float32)
    output = ops.paged_attention(everyone, kv, stripe.whole, *settings, sinks, lse)
    packed = torch.cat((_bytes(output), _bytes(lse[..., None])), -1).index_select(0, stripe.by_rank)
    returned = cp.all_to_all(torch.split(packed, list(stripe.sizes)))
    width = output.shape[-1] * output.element_size()
    outputs = [_numbers(part[..., :width], output.dtype) for part in returned]
    lses = [_numbers(part[..., width:], lse.dtype)[..., 0] for part in returned]
    return merge_partials(outputs, lses)


def merge_partials(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> Tensor:
    """Attention over all keys from attention over disjoint parts of them: outputs [T, Q, Dv], log-sum-exps [T, Q].

    Σ exp(lseᵢ)·outᵢ / Σ exp(lseᵢ), in fp32 and in the order given; a row without any key (all -inf) is zero.
    """
    weights = torch.stack(list(lses)).float()
    peak = weights.amax(0)
    # exp(-inf - -inf) is NaN; against zero it is the zero that no key is worth.
    weights = torch.exp(weights - peak.masked_fill(peak.isneginf(), 0.0))
    total = weights.sum(0)
    merged = outputs[0].float() * weights[0][..., None]
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        merged.addcmul_(output.float(), weight[..., None])
    return merged.div_(total.masked_fill(total == 0, 1.0)[..., None]).to(outputs[0].dtype)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _numbers(data: Tensor, dtype: torch.dtype) -> Tensor:
    return data.contiguous().view(dtype)
