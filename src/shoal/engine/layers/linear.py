"""A matrix product whose weight may hold several of a checkpoint's matrices, one below the other.

Over tensor-parallel ranks a matrix is cut one of two ways:

    column parallel    a rank holds some of the outputs: `Linear` with fewer rows          nothing to exchange
    row parallel       a rank holds some of the inputs: `RowLinear`, partial sums          one all-reduce
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Span, Target, empty
from shoal.engine.parallel.group import Group


class Linear(nn.Module):
    """x [T, in] -> [T, out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty((outputs, inputs), dtype, device)
        self.bias = empty((outputs,), dtype, device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def targets(self, parts: Mapping[str, Span | int]) -> dict[str, Target]:
        """Checkpoint names of the stacked matrices -> where each goes. `parts` gives the rows of each, in order."""
        found, start = {}, 0
        for name, rows in parts.items():
            span = Span.all(rows) if isinstance(rows, int) else rows
            found[f"{name}.weight"] = Target(self.weight.narrow(0, start, len(span)), spans=(span,))
            if self.bias is not None:
                found[f"{name}.bias"] = Target(self.bias.narrow(0, start, len(span)), spans=(span,))
            start += len(span)
        return found


class RowLinear(nn.Module):
    """x [T, own inputs] -> [T, out], the sum over the ranks of `group`. Every rank adds the bias, after the sum."""

    def __init__(
        self, inputs: Span, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device, group: Group
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.group = group
        self.weight = empty((outputs, len(inputs)), dtype, device)
        self.bias = empty((outputs,), dtype, device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.group.size == 1:
            return ops.linear(x, self.weight, self.bias)
        partial = ops.linear(x, self.weight)
        # Ranks of a group have the same rows, so that all skip a step without any.
        total = self.group.all_reduce(partial) if len(partial) else partial
        return total if self.bias is None else total.add_(self.bias)

    def targets(self, name: str) -> dict[str, Target]:
        found = {f"{name}.weight": Target(self.weight, spans=(Span.all(self.weight.shape[0]), self.inputs))}
        if self.bias is not None:
            found[f"{name}.bias"] = Target(self.bias)
        return found
