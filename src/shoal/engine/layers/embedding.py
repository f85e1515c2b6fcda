"""From token ids to vectors, and from vectors to logits. Tensor-parallel ranks hold some of the vocabulary each."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.linear import Weight, multiply, quantized, replace_weight, rows_of
from shoal.engine.layers.loading import Span, Target, empty
from shoal.engine.ops.quantized import QuantizedWeight
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
        self.weight: Weight = empty((len(self.rows), hidden), dtype, device)
        self.dtype = dtype
        self.scale = float(torch.tensor(scale, dtype=dtype))

    def quantize(self) -> None:
        """Have weights of eight bits; before loading. Fewer cost too much where a row is all that is looked at."""
        replace_weight(self, quantized(self.weight, "int8"))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self._looked_up(tokens) if self.tp.size == 1 else self._gathered(tokens)
        return rows if self.scale == 1.0 else rows * self.scale

    def _looked_up(self, tokens: Tensor) -> Tensor:
        if isinstance(self.weight, QuantizedWeight):
            return ops.quantized_rows(self.weight, tokens, self.dtype)
        return F.embedding(tokens, self.weight)

    def _gathered(self, tokens: Tensor) -> Tensor:
        """Each rank looks up the ids it holds and has zeros for the rest; the sum is exact."""
        local = tokens - self.rows.own.start
        absent = (local < 0) | (local >= len(self.rows))
        rows = self._looked_up(local.masked_fill_(absent, 0)).masked_fill_(absent[:, None], 0)
        return self.tp.all_reduce(rows) if len(rows) else rows

    def targets(self, name: str) -> dict[str, Target]:
        return {f"{name}.weight": Target(rows_of(self.weight, 0, len(self.rows)), spans=(self.rows,))}


class Head(nn.Module):
    """hidden [R, H] -> logits [R, V] in fp32 on the first rank of `tp`; on others, the columns that they hold.

    The model's soft cap (by tanh) is applied in the compute dtype. Its weight may be the embedding's.
    """

    def __init__(
        self, spec: ModelSpec, shared: Weight | None, dtype: torch.dtype, device: torch.device, tp: Group
    ) -> None:
        super().__init__()
        self.tp = tp
        self.softcap = spec.final_softcap
        self.parts = split(spec.vocab, tp.size)
        self.rows = Span(spec.vocab, self.parts[tp.index])
        self.hidden, self.dtype, self.device = spec.hidden, dtype, device
        self.weight: Weight = empty((len(self.rows), spec.hidden), dtype, device) if shared is None else shared

    def quantize(self, shared: Weight | None) -> None:
        """Have weights of eight bits; before loading. `shared`: the embedding's, which it has in common with it."""
        replace_weight(self, quantized(self.weight, "int8") if shared is None else shared)

    def forward(self, hidden: Tensor) -> Tensor:
        logits = multiply(hidden, self.weight)
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
        return {f"{name}.weight": Target(rows_of(self.weight, 0, len(self.rows)), spans=(self.rows,))}

    def own(self, name: str, shape: tuple[int, ...], read: Callable[[Ranges], Tensor]) -> None:
        """Take a head that the checkpoint gives although the config says that it is the embedding."""
        weight: Weight = empty((len(self.rows), self.hidden), self.dtype, self.device)
        if isinstance(self.weight, QuantizedWeight):
            weight = quantized(weight, "int8")
        Target(rows_of(weight, 0, len(self.rows)), spans=(self.rows,)).fill(name, shape, read)
        replace_weight(self, weight)

    def share_if_equal(self, shared: Weight) -> None:
        """Keep one copy of an embedding that was given twice."""
        if self.weight is not shared and _equal(self.weight, shared):
            replace_weight(self, shared)


def _equal(one: Weight, other: Weight) -> bool:
    if isinstance(one, QuantizedWeight) and isinstance(other, QuantizedWeight):
        return torch.equal(one.codes, other.codes) and torch.equal(one.scales, other.scales)
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
