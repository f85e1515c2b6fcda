"""Root-mean-square norm."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Target, empty
from shoal.specs.model import NormSpec


class RmsNorm(nn.Module):
    """Over the last dimension. Weights stored as an offset from one are kept with the one added, in fp32."""

    def __init__(self, width: int, spec: NormSpec, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = spec.eps
        self.offset = 1.0 if spec.plus_one else 0.0
        self.weight = empty((width,), torch.float32 if spec.plus_one else dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add_norm(self, x: Tensor, add: Tensor) -> tuple[Tensor, Tensor]:
        """(x + add, its norm) of rows [T, H]. The caller gives x up."""
        return ops.add_rms_norm(x, add, self.weight, self.eps)

    def targets(self, name: str) -> dict[str, Target]:
        return {f"{name}.weight": Target(self.weight, self.offset)}
