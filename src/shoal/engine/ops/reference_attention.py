"""Attention of a mixed batch over paged keys and values, in plain torch.

Short queries gather their keys head by head, [S · K, L, D], and multiply them in two batched products, the G query
heads of a group sharing one read. Long queries use torch's fused attention, which never holds the whole score
matrix; with a softcap, sinks or the log-sum-exp, which it doesn't know, they are taken in slices instead.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.attention_plan import AttentionGroup, plan_attention

SCORE_ELEMENTS = 1 << 22
"""Most scores held at once where the score matrix is held at all."""


def paged_attention(
    q: Tensor,
    kv: LayerKv,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """softmax(scale · q·k) · v of every row over its sequence's cached tokens. q [T, Q, D] -> [T, Q, Dv].

    A row at position p sees keys in (p - window, p]. `softcap` bounds the scores to ±softcap by tanh (Gemma 2).
    `sinks` [Q] are logits that take part in the softmax and have no value (gpt-oss).

    `lse` [T, Q] fp32 is filled with the log of each row's softmax denominator, by which shards merge. With
    `batch.key_stride` above one a rank has some of the keys only; a row that sees none of them is 0 and -inf.
    """
    total, heads, _ = q.shape
    _, block_size, kv_heads, _ = kv.k.shape
    out = q.new_empty(total, heads, kv.v.shape[-1])
    plain = softcap is None and sinks is None and lse is None
    for group in plan_attention(batch, window, kv_heads, block_size, q.dtype):
        rows = group.rows
        grouped = q[rows] if isinstance(rows, slice) else q.index_select(0, rows)
        if plain and not group.short:
            out[rows] = _fused(grouped, kv, group, scale)
            continue
        attended, denominators = _explicit(grouped, kv, group, scale, softcap, sinks, lse is not None)
        out[rows] = attended
        if lse is not None and denominators is not None:
            lse[rows] = denominators
    return out


def _fused(q: Tensor, kv: LayerKv, group: AttentionGroup, scale: float) -> Tensor:
    """One long query: q [n, Q, D] -> [n, Q, Dv]."""
    k = _gathered(kv.k, kv.k_scales, group.slots, q.dtype)
    v = _gathered(kv.v, kv.v_scales, group.slots, q.dtype)
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=None if group.mask is None else group.mask[:, :, :, 0],
        is_causal=group.causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended[0].transpose(0, 1)


def _explicit(
    q: Tensor,
    kv: LayerKv,
    group: AttentionGroup,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
    want_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Any group, holding its scores: q [S · n, Q, D] -> [S · n, Q, Dv] and, if wanted, [S · n, Q]."""
    sequences, queries, keys = group.sequences, group.queries, group.keys
    kv_heads, width, v_width = kv.k.shape[2], kv.k.shape[3], kv.v.shape[3]
    dtype = q.dtype
    shared = q.shape[1] // kv_heads
    if group.short:
        k = _gathered(kv.k, kv.k_scales, group.slots, dtype, by_head=True).view(-1, keys, width)
        v = _gathered(kv.v, kv.v_scales, group.slots, dtype, by_head=True).view(-1, keys, v_width)
    else:
        k = _gathered(kv.k, kv.k_scales, group.slots, dtype).transpose(0, 1)
        v = _gathered(kv.v, kv.v_scales, group.slots, dtype).transpose(0, 1)
    per_query = sequences * q.shape[1] * keys
    slice_queries = max(1, min(queries, SCORE_ELEMENTS // per_query))
    headed = q.view(sequences, queries, kv_heads, shared, width).transpose(1, 2)
    pieces, denominators = [], []
    for start in range(0, queries, slice_queries):
        part = headed[:, :, start : start + slice_queries]
        count = part.shape[2]
        flat = part.reshape(sequences * kv_heads, count * shared, width)
        scores = torch.baddbmm(flat.new_zeros(()), flat, k.transpose(1, 2), beta=0, alpha=scale)
        shaped = scores.view(sequences, kv_heads, count, shared, keys)
        if softcap is not None:
            shaped = torch.tanh(shaped / softcap) * softcap
        hidden = _hidden(group, start, count, shaped)
        if hidden is not None:
            shaped += hidden
        weights, lse = _softmax(shaped, sinks, want_lse)
        attended = torch.bmm(weights.view(scores.shape), v).view(sequences, kv_heads, count, shared, v_width)
        pieces.append(attended.transpose(1, 2).reshape(sequences, count, q.shape[1], v_width))
        if lse is not None:
            denominators.append(lse.transpose(1, 2).reshape(sequences, count, q.shape[1]))
    out = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
    return out.flatten(0, 1), torch.cat(denominators, 1).flatten(0, 1) if denominators else None


def _gathered(
    cache: Tensor, scales: Tensor | None, slots: Tensor, dtype: torch.dtype, by_head: bool = False
) -> Tensor:
    """Cached heads [n, K, D] of slots, or [n, D] of (slot, head) pairs; eight-bit ones times their scales."""
    rows = cache.view(-1, cache.shape[-1]) if by_head else cache.flatten(0, 1)
    found = rows.index_select(0, slots)
    if scales is None:
        return found
    scale = scales.view(-1) if by_head else scales.flatten(0, 1)
    return (found.float() * scale.index_select(0, slots).float()[..., None]).to(dtype)


def _hidden(group: AttentionGroup, start: int, count: int, scores: Tensor) -> Tensor | None:
    """The mask of some of the group's queries, [S, 1, count, 1, L]."""
    if group.mask is not None:
        return group.mask[:, :, start : start + count]
    if not group.causal:
        return None
    square = torch.full((count, group.keys), -torch.inf, dtype=scores.dtype, device=scores.device)
    return square.triu_(start + 1)[None, None, :, None, :]


def _softmax(scores: Tensor, sinks: Tensor | None, want_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Over the last dimension of [S, K, n, G, L], in fp32; and the log of the denominator, [S, K, n, G]."""
    if sinks is None and not want_lse:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype), None
    lse = torch.logsumexp(scores.float(), -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(scores.shape[1], 1, scores.shape[3]))
    # A row that sees no key (all are on other ranks) has no weights, and exp(-inf - -inf) would be NaN.
    denominators = lse.masked_fill(lse.isneginf(), 0.0)
    return torch.exp(scores.float() - denominators[..., None]).to(scores.dtype), lse
