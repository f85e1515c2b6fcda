"""The dense feed-forward network."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.linear import Linear
from shoal.engine.layers.loading import Target
from shoal.specs.model import FfnSpec


class GatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)), [T, H] -> [T, H]; gate and up come from one product."""

    def __init__(self, spec: FfnSpec, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.inner = spec.intermediate
        self.activation = spec.activation
        self.gate_up = Linear(hidden, 2 * spec.intermediate, spec.bias, dtype, device)
        self.down = Linear(spec.intermediate, hidden, spec.bias, dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)
        if self.activation == "silu":
            inner = ops.silu_mul(gate_up)
        else:
            inner = ops.gelu_mul(gate_up, "tanh" if self.activation == "gelu_tanh" else "none")
        return self.down(inner)  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target]:
        parts = {"gate_proj": self.inner, "up_proj": self.inner}
        return self.gate_up.targets(parts) | self.down.targets({"down_proj": self.down.weight.shape[0]})
