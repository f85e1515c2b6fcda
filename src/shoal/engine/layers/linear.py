"""A matrix product whose weight may hold several of a checkpoint's matrices, one below the other."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Target, empty


class Linear(nn.Module):
    """x [T, in] -> [T, out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty((outputs, inputs), dtype, device)
        self.bias = empty((outputs,), dtype, device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def targets(self, parts: dict[str, int]) -> dict[str, Target]:
        """Checkpoint names of the stacked matrices -> where each goes. `parts` gives the rows of each, in order."""
        found, start = {}, 0
        for name, rows in parts.items():
            found[f"{name}.weight"] = Target(self.weight.narrow(0, start, rows))
            if self.bias is not None:
                found[f"{name}.bias"] = Target(self.bias.narrow(0, start, rows))
            start += rows
        return found
