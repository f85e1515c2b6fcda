"""The dense feed-forward network."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.layers.loading import Span, Target
from shoal.engine.ops.fused import GatedFfn, Product
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import split
from shoal.specs.model import FfnSpec


class GatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)), [T, H] -> [T, H]; gate and up come from one product.

    A tensor-parallel rank holds some of the inner columns, and the outputs are summed over ranks.
    """

    def __init__(
        self, spec: FfnSpec, hidden: int, dtype: torch.dtype, device: torch.device, mesh: Mesh | None = None
    ) -> None:
        super().__init__()
        tp = (mesh or Mesh.single()).tp
        self.inner = Span(spec.intermediate, split(spec.intermediate, tp.size)[tp.index])
        self.activation = spec.activation
        self.gate_up = Linear(hidden, 2 * len(self.inner), spec.bias, dtype, device)
        self.down = RowLinear(self.inner, hidden, spec.bias, dtype, device, tp)

    def forward(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)
        if self.activation == "gelu":
            return self.down(ops.gelu_mul(gate_up, "none"))  # type: ignore[no-any-return]
        return self.down.forward_gated(gate_up, "silu" if self.activation == "silu" else "gelu_tanh")

    def fused_spec(self) -> GatedFfn | None:
        """What the compiled kernels take in one call with the rest of a layer; None where they can't."""
        # A bias is added once, after the sum over ranks.
        if self.down.group.size > 1 and self.down.bias is not None:
            return None
        gate_up = Product(self.gate_up.weight, self.gate_up.bias)
        return GatedFfn(gate_up, Product(self.down.weight, self.down.bias), self.activation)

    def targets(self) -> dict[str, Target]:
        return self.gate_up.targets({"gate_proj": self.inner, "up_proj": self.inner}) | self.down.targets(
            "down_proj"
        )
