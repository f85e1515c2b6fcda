"""From token ids to vectors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.engine.layers.loading import Target, empty


class Embedding(nn.Module):
    """ids [T] -> [T, H], times `scale` rounded to the compute dtype (as Gemma was trained)."""

    def __init__(self, vocab: int, hidden: int, scale: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty((vocab, hidden), dtype, device)
        self.scale = float(torch.tensor(scale, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = F.embedding(tokens, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale

    def targets(self, name: str) -> dict[str, Target]:
        return {f"{name}.weight": Target(self.weight)}
