"""A decoder whose last hidden states are pooled, run by the engine's own model with KV memory for one batch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from shoal.engine import ops
from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.errors import WeightsError
from shoal.engine.kv.budget import available_memory, kv_budget
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.engine.models.build import build_model
from shoal.engine.models.quantize import quantize_model
from shoal.engine.options import EngineOptions
from shoal.engine.pooling.config import PoolingSpec
from shoal.engine.pooling.model import TokenSequence
from shoal.engine.weights import open_weights
from shoal.specs.model import ModelSpec
from shoal.specs.parse import parse_config

_SCORE = "score.weight"


class Decoder:
    """See `PoolingModel`. Prompts longer than a step's budget are computed in chunks."""

    def __init__(
        self, options: EngineOptions, path: Path, pooling: PoolingSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises UnsupportedModel, WeightsError or OutOfMemory."""
        spec = decoder_spec(path)
        longest = min(options.max_model_len or spec.max_position, pooling.max_length or spec.max_position)
        self._model = build_model(spec, dtype, device, longest)
        if options.quantize is not None:
            quantize_model(self._model, options.quantize)
        self._scores: list[Tensor] = []
        self._model.load(self._tensors(path))
        shapes = [tuple(score.shape) for score in self._scores]
        if pooling.scores and shapes != [(1, spec.hidden)]:
            raise WeightsError(f"found shapes {shapes}, expected {[(1, spec.hidden)]}", tensor=_SCORE)
        # One batch at a time: the memory of the longest sequence, or less where there is less.
        single = msgspec.structs.replace(options, max_num_seqs=1)
        block_bytes = kv_block_bytes(spec, options.block_size, dtype)
        budget = kv_budget(single, block_bytes, longest, available_memory())
        self._kv = KvCache(spec, budget.num_blocks, options.block_size, dtype, device)
        self._step = options.max_num_batched_tokens
        self._device, self._dtype = device, dtype
        self.width, self.vocab, self.max_length = spec.hidden, spec.vocab, budget.max_model_len

    def _tensors(self, path: Path) -> Iterator[tuple[str, Tensor]]:
        """The checkpoint's, without heads: the embedding stands for one, and a score's is kept here."""
        for name, tensor in open_weights(path).tensors():
            if name.endswith(_SCORE):
                self._scores.append(tensor.to(torch.float32, copy=True))
            elif not name.endswith("lm_head.weight"):
                yield name, tensor

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """See `PoolingModel.hidden`."""
        size = self._kv.block_size
        found: list[Tensor] = []
        group: list[tuple[TokenSequence, range]] = []
        free = 1
        for sequence in sequences:
            blocks = -(-len(sequence.ids) // size)
            if group and (
                free + blocks > self._kv.num_blocks
                or sum(len(s.ids) for s, _ in group) + len(sequence.ids) > self._step
            ):
                found += self._group(group)
                group, free = [], 1
            group.append((sequence, range(free, free + blocks)))
            free += blocks
        return found + (self._group(group) if group else [])

    def _group(self, group: Sequence[tuple[TokenSequence, range]]) -> list[Tensor]:
        if len(group) > 1:
            shares = [SequenceRows(s.ids, 0, list(blocks), 0) for s, blocks in group]
            return list(torch.split(self._forward(shares), [len(s.ids) for s, _ in group]))
        sequence, blocks = group[0]
        chunks = [
            self._forward([SequenceRows(sequence.ids[start : start + self._step], start, list(blocks), 0)])
            for start in range(0, len(sequence.ids), self._step)
        ]
        return [torch.cat(chunks)]

    def _forward(self, shares: Sequence[SequenceRows]) -> Tensor:
        return self._model(build_batch(shares, self._kv.block_size, self._device), self._kv)  # type: ignore[no-any-return]

    def score(self, pooled: Tensor) -> Tensor:
        """See `PoolingModel.score`."""
        return ops.linear(pooled.float(), self._scores[0].to(self._device))[:, 0]


def decoder_spec(path: Path) -> ModelSpec:
    """The model below the pooling: without a head of its own, as the causal model of the same kind."""
    config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    kind = str((config.get("architectures") or [""])[0])
    for ending in ("ForSequenceClassification", "Model"):
        if kind.endswith(ending):
            kind = kind.removesuffix(ending) + "ForCausalLM"
    return parse_config(config | {"architectures": [kind], "tie_word_embeddings": True}, path.name)
