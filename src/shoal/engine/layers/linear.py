"""A matrix product whose weight may hold several of a checkpoint's matrices, one below the other.

Over tensor-parallel ranks a matrix is cut one of two ways:

    column parallel    a rank holds some of the outputs: `Linear` with fewer rows          nothing to exchange
    row parallel       a rank holds some of the inputs: `RowLinear`, partial sums          one all-reduce
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Place, Span, Target, empty
from shoal.engine.lora.update import LowRankUpdates
from shoal.engine.ops.quantized import PANEL, QuantizedRows, QuantizedWeight, Scheme
from shoal.engine.ops.reference_quantized import Gate
from shoal.engine.parallel.group import Group

Weight = nn.Parameter | QuantizedWeight


def multiply(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times a weight [out, in] of either kind -> [T, out]."""
    if isinstance(weight, QuantizedWeight):
        return ops.quantized_linear(x, weight, bias)
    return ops.linear(x, weight, bias)


def quantized(weight: Weight, scheme: Scheme) -> Weight:
    """As `weight`, for numbers of fewer bits. Neither is filled yet, and what a `Parameter` took is given back."""
    if isinstance(weight, QuantizedWeight) or weight.shape[0] < PANEL or not weight.is_cpu:
        return weight
    return QuantizedWeight.empty(scheme, *weight.shape)


def replace_weight(module: nn.Module, weight: Weight) -> None:
    """A module's `weight`, whichever kind it was: PyTorch lets nothing but a parameter take a parameter's name."""
    module._parameters.pop("weight", None)
    setattr(module, "weight", weight)  # noqa: B010  # the module's declared type is PyTorch's


def rows_of(weight: Weight, start: int, count: int) -> Place:
    """Some outputs, to be filled."""
    return (
        QuantizedRows(weight, start, count)
        if isinstance(weight, QuantizedWeight)
        else weight.narrow(0, start, count)
    )


def _gated(gate_up: Tensor, gate: Gate) -> Tensor:
    return ops.silu_mul(gate_up) if gate == "silu" else ops.gelu_mul(gate_up)


class Linear(nn.Module):
    """x [T, in] -> [T, out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight: Weight = empty((outputs, inputs), dtype, device)
        self.bias = empty((outputs,), dtype, device) if bias else None
        self.lora: LowRankUpdates | None = None

    def quantize(self, scheme: Scheme) -> None:
        """Have weights of fewer bits; before loading."""
        replace_weight(self, quantized(self.weight, scheme))

    def forward(self, x: Tensor) -> Tensor:
        y = multiply(x, self.weight, self.bias)
        return y if self.lora is None else self.lora.add(y, x)

    def targets(self, parts: Mapping[str, Span | int]) -> dict[str, Target]:
        """Checkpoint names of the stacked matrices -> where each goes. `parts` gives the rows of each, in order."""
        found, start = {}, 0
        for name, rows in parts.items():
            span = Span.all(rows) if isinstance(rows, int) else rows
            found[f"{name}.weight"] = Target(rows_of(self.weight, start, len(span)), spans=(span,))
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
        self.outputs = outputs
        self.weight: Weight = empty((outputs, len(inputs)), dtype, device)
        self.bias = empty((outputs,), dtype, device) if bias else None
        self.lora: LowRankUpdates | None = None

    def quantize(self, scheme: Scheme) -> None:
        """Have weights of fewer bits; before loading."""
        replace_weight(self, quantized(self.weight, scheme))

    def forward(self, x: Tensor) -> Tensor:
        partial = multiply(x, self.weight, self._own_bias())
        # A is cut by inputs as the weight is, so that updates are partial sums too.
        return self._summed(partial if self.lora is None else self.lora.add(partial, x))

    def forward_gated(self, gate_up: Tensor, gate: Gate) -> Tensor:
        """As `forward`, of act(gate) · up: rows gate | up [T, 2 · own inputs]."""
        if isinstance(self.weight, QuantizedWeight):
            partial = ops.quantized_linear(gate_up, self.weight, self._own_bias(), gate)
            if self.lora is not None and self.lora.wanted:
                self.lora.add(partial, _gated(gate_up, gate))
            return self._summed(partial)
        return self(_gated(gate_up, gate))  # type: ignore[no-any-return]

    def _own_bias(self) -> Tensor | None:
        return self.bias if self.group.size == 1 else None

    def _summed(self, partial: Tensor) -> Tensor:
        if self.group.size == 1:
            return partial
        # Ranks of a group have the same rows, so that all skip a step without any.
        total = self.group.all_reduce(partial) if len(partial) else partial
        return total if self.bias is None else total.add_(self.bias)

    def targets(self, name: str) -> dict[str, Target]:
        place = rows_of(self.weight, 0, self.outputs)
        found = {f"{name}.weight": Target(place, spans=(Span.all(self.outputs), self.inputs))}
        if self.bias is not None:
            found[f"{name}.bias"] = Target(self.bias)
        return found
