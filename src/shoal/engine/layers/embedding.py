"""From token ids to vectors, and from vectors to logits. Tensor-parallel ranks hold some of the vocabulary each."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Span, Target, empty
from shoal.engine.parallel.group import Group
from shoal.engine.parallel.shard import split
from shoal.engine.weights.source import Ranges
from shoal.specs.model import ModelSpec


class Embedding(nn.Module):
    """ids [T] -> [T, H], times `scale` rounded to the compute dtype (as Gemma was trained)."""

    def __init__(
        self, vocab: int, hidden: int, scale: float, dtype: torch.dtype, device: torch.device, tp: Group
    ) -> None:
        super().__init__()
        self.tp = tp
        self.rows = Span(vocab, split(vocab, tp.size)[tp.index])
        self.weight = empty((len(self.rows), hidden), dtype, device)
        self.scale = float(torch.tensor(scale, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = F.embedding(tokens, self.weight) if self.tp.size == 1 else self._gathered(tokens)
        return rows if self.scale == 1.0 else rows * self.scale

    def _gathered(self, tokens: Tensor) -> Tensor:
        """Each rank looks up the ids it holds and has zeros for the rest; the sum is exact."""
        local = tokens - self.rows.own.start
        absent = (local < 0) | (local >= len(self.rows))
        rows = F.embedding(local.masked_fill_(absent, 0), self.weight).masked_fill_(absent[:, None], 0)
        return self.tp.all_reduce(rows) if len(rows) else rows

    def targets(self, name: str) -> dict[str, Target]:
        return {f"{name}.weight": Target(self.weight, spans=(self.rows,))}


class Head(nn.Module):
    """hidden [R, H] -> logits [R, V] in fp32 on the first rank of `tp`; on others, the columns that they hold.

    The model's scale and soft cap (by tanh) are applied in the compute dtype. Its weight may be the embedding's.
    """

    def __init__(
        self, spec: ModelSpec, shared: nn.Parameter | None, dtype: torch.dtype, device: torch.device, tp: Group
    ) -> None:
        super().__init__()
        self.tp = tp
        self.scale = spec.logit_scale
        self.softcap = spec.final_softcap
        self.parts = split(spec.vocab, tp.size)
        self.rows = Span(spec.vocab, self.parts[tp.index])
        self.weight = empty((len(self.rows), spec.hidden), dtype, device) if shared is None else shared

    def forward(self, hidden: Tensor) -> Tensor:
        logits = ops.linear(hidden, self.weight)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return (self._gathered(logits) if len(logits) else logits.new_empty(0, self.rows.whole)).float()

    def _gathered(self, logits: Tensor) -> Tensor:
        """All columns, on the one rank that samples: the others have no use for them."""
        if self.tp.size == 1:
            return logits
        if self.tp.index > 0:
            self.tp.send(logits, 0)
            return logits
        rows = len(logits)
        others = [self.tp.recv((rows, len(part)), logits.dtype, i) for i, part in enumerate(self.parts) if i > 0]
        return torch.cat((logits, *others), 1)

    def targets(self, name: str) -> dict[str, Target]:
        return {f"{name}.weight": Target(self.weight, spans=(self.rows,))}

    def own(self, name: str, shape: tuple[int, ...], read: Callable[[Ranges], Tensor]) -> None:
        """Take a head that the checkpoint gives although the config says that it is the embedding."""
        weight = empty(tuple(self.weight.shape), self.weight.dtype, self.weight.device)
        Target(weight, spans=(self.rows,)).fill(name, shape, read)
        self.weight = weight

    def share_if_equal(self, shared: nn.Parameter) -> None:
        """Keep one copy of an embedding that was given twice."""
        if self.weight is not shared and torch.equal(self.weight, shared):
            self.weight = shared
