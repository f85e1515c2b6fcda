"""The operations of a model in plain torch, on any device: what every kernel is measured against.

Numerics follow Transformers' eager modules: norms, softmax and rotary angles in fp32, everything else in the
compute dtype. Attention is in `reference_attention`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.quantized import QMAX

SMALLEST_HEAD = 1e-30
"""Below it, a step would be too small a number to divide by."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, in fp32.

    The result is rounded to x's dtype before the product when the weight has that dtype (Llama), after it when the
    weight is fp32 (Gemma).
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight.dtype == x.dtype:
        return normed.to(x.dtype) * weight
    return (normed * weight).to(x.dtype)


def add_rms_norm(x: Tensor, add: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + add, its `rms_norm`). The caller gives x up: the sum may be left in its memory."""
    total = x + add
    return total, rms_norm(total, weight, eps)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first `dim` channels of every head. x [T, heads, D]; cos, sin [T, 1, dim] -> [T, heads, D].

    `sin` carries the sign of its channel (minus for the first of each pair), so that a rotation is
    x · cos + partner(x) · sin. A pair is (i, i + dim/2), or (2i, 2i+1) when interleaved.
    """
    dim = cos.shape[-1]
    turned = x if dim == x.shape[-1] else x[..., :dim]
    if interleaved:
        partner = turned.reshape(*turned.shape[:-1], dim // 2, 2).flip(-1).flatten(-2)
    else:
        partner = turned.roll(dim // 2, -1)
    rotated = torch.addcmul(turned * cos, partner, sin)
    return rotated if turned is x else torch.cat((rotated, x[..., dim:]), -1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of a [T, 2 · I] row of both halves -> [T, I]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gelu_mul(gate_up: Tensor, approximate: str = "tanh") -> Tensor:
    """gelu(gate) · up of a [T, 2 · I] row of both halves -> [T, I]; `approximate` is "tanh" or "none"."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate=approximate).mul_(up)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times weight [out, in], transposed -> [T, out]."""
    return F.linear(x, weight, bias)


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    interleaved: bool,
    kv: LayerKv,
    slots: Tensor,
) -> Tensor:
    """Turn q and k by the rows' angles (`rope`), put k and v in their slots (`write_kv`) and return q.

    The caller gives q up: it may be turned in place.
    """
    if rotation is not None:
        q, k = rope(q, *rotation, interleaved), rope(k, *rotation, interleaved)
    write_kv(kv, k, v, slots)
    return q


def write_kv(kv: LayerKv, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put rows k [T, K, D], v [T, K, Dv] where slots [T] say (block · B + offset)."""
    for rows, cache, scales in ((k, kv.k, kv.k_scales), (v, kv.v, kv.v_scales)):
        if scales is not None:
            rows, scale = quantize_heads(rows)
            scales.flatten(0, 1).index_copy_(0, slots, scale)
        cache.flatten(0, 1).index_copy_(0, slots, rows)


def quantize_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K, D] as ±127 steps, int8, of a bfloat16 scale [T, K] each.

    Scales are rounded up, so that no number is beyond 127 steps. A head whose numbers are all below SMALLEST_HEAD
    is zero; one with a number that isn't finite has a NaN for a scale, so that all of it is read as NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    finite, zero = largest.isfinite(), largest < SMALLEST_HEAD
    bits = ((largest / QMAX).view(torch.int32) + 0xFFFF) >> 16
    scale = (bits << 16).view(torch.float32).masked_fill(zero, 0.0).masked_fill(~finite, torch.nan)
    steps = (wide / scale[..., None]).round_().masked_fill((zero | ~finite)[..., None], 0.0)
    return steps.to(torch.int8), scale.bfloat16()
