"""The experts that a rank holds, in slots, and what they compute for rows sorted by slot."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.linear import Weight
from shoal.engine.layers.loading import Place, Span, Target, empty
from shoal.engine.ops.fused import GatedFfn, Product
from shoal.engine.ops.quantized import QuantizedRows, QuantizedWeight, Scheme
from shoal.engine.parallel.group import Group
from shoal.engine.parallel.shard import split
from shoal.specs.model import FfnSpec


def activate(gate_up: Tensor, spec: FfnSpec) -> Tensor:
    """[N, 2 · I], gate and up -> [N, I]."""
    match spec.activation:
        case "silu":
            return ops.silu_mul(gate_up)
        case "swiglu_oai":
            limit = torch.inf if spec.swiglu_limit is None else spec.swiglu_limit
            return ops.swiglu_oai(gate_up, limit, spec.swiglu_alpha)
        case activation:
            return ops.gelu_mul(gate_up, "tanh" if activation == "gelu_tanh" else "none")


class Experts(nn.Module):
    """rows [N, H] sorted by slot, and how many each slot has -> [N, H], not yet weighted.

    Where experts are cut, a rank holds some of each one's inner columns and its outputs are partial sums over
    `cut`; the first rank of it adds the output bias.
    """

    def __init__(
        self, spec: FfnSpec, slots: int, hidden: int, dtype: torch.dtype, device: torch.device, cut: Group
    ) -> None:
        super().__init__()
        self.spec = spec
        self.slots = slots
        self.inner = Span(spec.intermediate, split(spec.intermediate, cut.size)[cut.index])
        self.adds_bias = cut.index == 0
        width = len(self.inner)
        self.hidden = hidden
        self.gate_up: Weight = empty((slots, 2 * width, hidden), dtype, device)
        self.down: Weight = empty((slots, hidden, width), dtype, device)
        self.gate_up_bias = empty((slots, 2 * width), dtype, device) if spec.experts_bias else None
        self.down_bias = empty((slots, hidden), dtype, device) if spec.experts_bias else None

    def quantize(self, scheme: Scheme) -> None:
        """Have weights of fewer bits; before loading."""
        width = len(self.inner)
        if isinstance(self.gate_up, QuantizedWeight) or not self.gate_up.is_cpu or not width:
            return
        del self.gate_up, self.down
        self.gate_up = QuantizedWeight.empty(scheme, 2 * width, self.hidden, self.slots)
        self.down = QuantizedWeight.empty(scheme, self.hidden, width, self.slots)

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        gate_up = _grouped(rows, counts, self.gate_up, self.gate_up_bias)
        bias = self.down_bias if self.adds_bias else None
        if isinstance(self.down, QuantizedWeight) and self.spec.activation == "silu":
            return ops.quantized_experts(gate_up, counts, self.down, bias, "silu")
        return _grouped(activate(gate_up, self.spec), counts, self.down, bias)

    def fused_spec(self) -> GatedFfn:
        """All of them as the compiled kernels take them."""
        spec = self.spec
        return GatedFfn(
            Product(self.gate_up, self.gate_up_bias),
            Product(self.down, self.down_bias if self.adds_bias else None),
            spec.activation,
            torch.inf if spec.swiglu_limit is None else spec.swiglu_limit,
            spec.swiglu_alpha,
        )

    def weights(self) -> list[Tensor]:
        """What an expert consists of; the first dimension is the slot."""
        found: list[Tensor] = []
        for weight in (self.gate_up, self.down):
            found += [weight.codes, weight.scales] if isinstance(weight, QuantizedWeight) else [weight]
        if self.gate_up_bias is not None and self.down_bias is not None:
            found += [self.gate_up_bias, self.down_bias]
        return found

    def targets(self, experts: Sequence[int]) -> dict[str, Target]:
        """Checkpoint names of the experts in slots 0, 1, … -> where they go."""
        found: dict[str, Target] = {}
        inner, hidden = self.inner, Span.all(self.hidden)
        for slot, expert in enumerate(experts):
            gate = _slot_rows(self.gate_up, slot, 0, len(inner))
            up = _slot_rows(self.gate_up, slot, len(inner), len(inner))
            found[f"{expert}.gate_proj.weight"] = Target(gate, spans=(inner,))
            found[f"{expert}.up_proj.weight"] = Target(up, spans=(inner,))
            found[f"{expert}.down_proj.weight"] = Target(
                _slot_rows(self.down, slot, 0, self.hidden), spans=(hidden, inner)
            )
            if self.gate_up_bias is not None and self.down_bias is not None:
                gate_bias, up_bias = torch.split(self.gate_up_bias[slot], len(inner))
                found[f"{expert}.gate_proj.bias"] = Target(gate_bias, spans=(inner,))
                found[f"{expert}.up_proj.bias"] = Target(up_bias, spans=(inner,))
                found[f"{expert}.down_proj.bias"] = Target(self.down_bias[slot])
        return found


def _grouped(rows: Tensor, counts: Sequence[int], weight: Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, QuantizedWeight):
        return ops.quantized_experts(rows, counts, weight, bias)
    return ops.grouped_linear(rows, counts, weight, bias)


def _slot_rows(weight: Weight, slot: int, start: int, count: int) -> Place:
    """Some outputs of one slot, to be filled."""
    if isinstance(weight, QuantizedWeight):
        return QuantizedRows(weight.slot(slot), start, count)
    return weight[slot].narrow(0, start, count)
