"""The operations of a model in plain torch, on any device: what every kernel is measured against.

Numerics follow Transformers' eager modules: norms, softmax and rotary angles in fp32, everything else in the
compute dtype. Attention is in `reference_attention`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.quantized import LARGEST, Int8Weight

SMALLEST_ROW = 1e-30
"""A row of activations whose largest magnitude is below this counts as zero: its reciprocal must be finite."""


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


def linear_int8(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """As `linear`, of rows of x that are rounded to ±127 steps of their largest magnitude / 127.

    A row with a number that isn't finite gives a row of NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(1, keepdim=True)
    scale = (largest / LARGEST).masked_fill(largest < SMALLEST_ROW, 0.0)
    # Not LARGEST / largest, which torch works out as a product with the reciprocal, rounded twice.
    steps = (wide * (torch.full_like(largest, LARGEST) / largest)).round_().masked_fill(largest < SMALLEST_ROW, 0.0)
    exact = F.linear(steps, weight.values[:, : weight.inputs].float())
    out = exact * weight.scales * scale
    out = out.masked_fill(~largest.isfinite(), torch.nan)
    return (out if bias is None else out + bias.float()).to(x.dtype)


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
    kv.k.flatten(0, 1).index_copy_(0, slots, k)
    kv.v.flatten(0, 1).index_copy_(0, slots, v)
