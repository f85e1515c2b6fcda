"""What the engine asks of a model whose states are pooled, and the pooling itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.pooling.config import PoolingSpec


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A text, or a pair of them, as a model is given it."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None
    """0 for tokens of the first text, 1 for those of the second; None: all 0."""


class PoolingModel(Protocol):
    """Weights, and how they are computed. Not thread-safe."""

    width: int
    vocab: int
    max_length: int
    """Tokens of the longest sequence."""

    def hidden(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Last hidden states of each sequence, [length, width]."""
        ...

    def score(self, pooled: Tensor) -> Tensor:
        """[S, width] -> [S]; only of models that score."""
        ...


@torch.inference_mode()
def pooled(model: PoolingModel, spec: PoolingSpec, sequences: Sequence[TokenSequence]) -> Tensor:
    """[S, width] float32 vectors, or [S] scores."""
    hidden = model.hidden(sequences)
    if spec.pooling == "mean":
        rows = torch.stack([h.float().mean(0) for h in hidden])
    else:
        at = 0 if spec.pooling == "cls" else -1
        rows = torch.stack([h[at] for h in hidden])
    if spec.scores:
        scores = model.score(rows).float()
        return scores.sigmoid() if spec.sigmoid else scores
    rows = rows.float()
    return F.normalize(rows, dim=1) if spec.normalize else rows
