"""Products with quantized weights in plain torch: what the kernels are measured against."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.ops import reference
from shoal.engine.ops.quantized import GROUP, QMAX, QuantizedWeight

Gate = Literal["silu", "gelu_tanh"]
SMALLEST = 1e-30
"""Activations whose largest magnitude is below this count as zero: its reciprocal must be finite."""


def quantized_linear(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, gate: Gate | None = None
) -> Tensor:
    """As `reference.linear`, of rows of x that are rounded to bytes: groups of 32 to ±127 steps of their largest
    magnitude / 127.

    With `gate`, of `reference.silu_mul(x)` or `gelu_mul(x)`. Steps of a group are added up exactly; a row with a
    number that isn't finite gives a row of NaN.
    """
    if gate is not None:
        x = reference.silu_mul(x) if gate == "silu" else reference.gelu_mul(x)
    wide = F.pad(x.float(), (0, -weight.inputs % GROUP))
    steps, scale = rounded(wide.view(len(wide), wide.shape[1] // GROUP, GROUP))
    out = _grouped(steps, scale[..., 0], weight)
    out = out.masked_fill(~x.float().isfinite().all(1, keepdim=True), torch.nan)
    return (out if bias is None else out + bias.float()).to(x.dtype)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Steps of the last dimension's largest magnitude / 127, whole numbers; and their scale, [..., 1]."""
    largest = x.abs().amax(-1, keepdim=True)
    nothing = (largest < SMALLEST) | ~largest.isfinite()
    scale = (largest / QMAX).masked_fill(nothing, 0.0)
    # Not QMAX / largest, which torch works out as a product with the reciprocal, rounded twice.
    steps = (x * (torch.full_like(largest, QMAX) / largest)).round_().masked_fill(nothing, 0.0)
    return steps, scale


def _grouped(steps: Tensor, scale: Tensor, weight: QuantizedWeight) -> Tensor:
    """steps [T, groups, 32] of scales [T, groups] -> [T, out]."""
    codes = weight.exact_codes().view(weight.outputs, *steps.shape[1:])
    scales = weight.exact_scales()
    exact = torch.einsum("tgi,ogi->tgo", steps, codes)
    out = torch.einsum("tgo,tg,og->to", exact, scale, scales[:, 0])
    if weight.scheme == "int4":
        out = out + torch.einsum("tg,og->to", steps.sum(-1) * scale, scales[:, 1])
    return out


def quantized_rows(weight: QuantizedWeight, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Outputs `rows` [T] of the only slot, as they are: [T, in]. Rows are of the weight: nobody checks again."""
    return weight.dequantized(rows).to(dtype)


def quantized_experts(
    x: Tensor,
    counts: Sequence[int],
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    gate: Gate | None = None,
) -> Tensor:
    """As `reference_experts.grouped_linear`: rows of x lie expert by expert, counts[e] of slot e of the weight;
    bias [slots, out].
    """
    if len(counts) != weight.slots or sum(counts) != len(x):
        raise ValueError(
            f"{len(counts)} counts that sum to {sum(counts)}, for {weight.slots} experts and {len(x)} rows"
        )
    out = x.new_empty(len(x), weight.outputs)
    start = 0
    for slot, count in enumerate(counts):
        if count:
            part = slice(start, start + count)
            out[part] = quantized_linear(x[part], weight.slot(slot), None if bias is None else bias[slot], gate)
            start += count
    return out
