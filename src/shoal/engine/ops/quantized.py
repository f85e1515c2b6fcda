"""Weights in eight-bit integers: what they are and how they are made."""

from dataclasses import dataclass

import torch
from torch import Tensor

PADDING = 64
"""Columns are padded with zeros to a multiple of this: the longest step of any processor's dot products."""
LARGEST = 127
"""-128 is not used, so that a product of two fits in 15 bits and the range is symmetric."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A matrix [out, in], a scale for each of its rows: weight ≈ scales[:, None] · values[:, :in]."""

    values: Tensor
    """[out, in padded] int8"""
    scales: Tensor
    """[out] float32"""
    sums: Tensor
    """[out] int32: Σ values of each row, for processors that only multiply unsigned activations."""
    inputs: int

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes + self.sums.nbytes

    def dequantized(self, rows: Tensor | None = None) -> Tensor:
        """[out, in] float32, or only some rows."""
        values, scales = self.values[:, : self.inputs], self.scales
        if rows is not None:
            values, scales = values[rows], scales[rows]
        return values.float() * scales[..., None]


def quantize_rows(weight: Tensor) -> Int8Weight:
    """Round each row of weight [out, in] to ±127 steps of its largest magnitude / 127."""
    outputs, inputs = weight.shape
    values = torch.zeros(outputs, -(-inputs // PADDING) * PADDING, dtype=torch.int8)
    scales = torch.empty(outputs, dtype=torch.float32)
    # In pieces, so that the numbers in fp32 never take as much memory as the matrix.
    for start in range(0, outputs, max(1, (1 << 20) // max(1, inputs))):
        part = weight[start : start + max(1, (1 << 20) // max(1, inputs))].float()
        scale = part.abs().amax(1) / LARGEST if inputs else part.new_zeros(len(part))
        scales[start : start + len(part)] = scale
        steps = part / scale.masked_fill(scale == 0, 1.0)[:, None]
        values[start : start + len(part), :inputs] = steps.round_().to(torch.int8)
    return Int8Weight(values, scales, values.sum(1, dtype=torch.int32), inputs)
