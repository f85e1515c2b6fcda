"""Run an engine model without an engine: batches and KV memory laid by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import KvCache
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM
from shoal.engine.weights import open_weights
from shoal.specs import ModelSpec, load_model_spec

CPU = torch.device("cpu")
BLOCK_SIZE = 4


@dataclass
class Direct:
    """A loaded model with KV memory whose blocks are handed out shuffled, so that no table is in order."""

    spec: ModelSpec
    model: CausalLM
    kv: KvCache
    free: list[int] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        path: Path,
        dtype: torch.dtype = torch.float32,
        max_length: int | None = None,
        blocks: int = 256,
        block_size: int = BLOCK_SIZE,
    ) -> "Direct":
        spec = load_model_spec(path)
        model = build_model(spec, dtype, CPU, max_length)
        model.load(open_weights(path).tensors())
        order = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(7)) + 1
        return cls(spec, model, KvCache(spec, blocks, block_size, dtype, CPU), order.tolist())

    def table(self, tokens: int) -> list[int]:
        """Blocks for a sequence of that many tokens; they are not taken back."""
        return [self.free.pop() for _ in range(-(-tokens // self.kv.block_size))]

    def step(self, shares: Sequence[SequenceRows]) -> list[Tensor]:
        """One forward pass; the logits each share asked for."""
        batch = build_batch(shares, self.kv.block_size, CPU)
        logits = self.model.logits(self.model(batch, self.kv)[batch.logit_rows])
        return list(logits.split([share.logits for share in shares]))

    def run(self, ids: Sequence[int], chunk: int, table: list[int] | None = None, start: int = 0) -> Tensor:
        """Logits of every position from `start` on, computed in chunks."""
        table = self.table(len(ids)) if table is None else table
        pieces = []
        for at in range(start, len(ids), chunk):
            part = ids[at : at + chunk]
            pieces += self.step([SequenceRows(part, at, table, len(part))])
        return torch.cat(pieces)


def relative_error(ours: Tensor, reference: Tensor) -> float:
    """Largest difference as a share of the largest reference logit."""
    return float((ours - reference).abs().max() / reference.abs().max())
