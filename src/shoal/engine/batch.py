"""What a rank's model sees of one step: flat rows, prefill and decode mixed, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens of a step in one row dimension `T`; the sequences' rows lie one after another.

    `T` rows, `S` sequences, `R` rows whose logits are wanted, `B` tokens a KV block.
    """

    tokens: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    slots: Tensor
    """[T] int64: where this row's keys and values go, block * B + offset."""
    query_starts: Tensor
    """[S+1] int32: rows of sequence i are query_starts[i]:query_starts[i+1]."""
    context_lengths: Tensor
    """[S] int32: tokens of sequence i in the cache after this step's writes."""
    block_tables: Tensor
    """[S, max_blocks] int32, padded with 0: block 0 is the null block, its contents are never used."""
    logit_rows: Tensor
    """[R] int64"""
    lengths: tuple[tuple[int, int], ...]
    """Per sequence (query_length, context_length)."""
    plans: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
    """What the attention ops worked out for this batch, kept for the next layer of the same kind."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence's share of a batch."""

    tokens: Sequence[int]
    """Ids at positions start, start + 1, …"""
    start: int
    """Tokens already in the cache."""
    blocks: Sequence[int] | npt.NDArray[np.int32]
    """The sequence's block table; at least ceil((start + len(tokens)) / block_size) entries."""
    logits: int = 1
    """How many of the last rows want logits."""


def build_batch(sequences: Sequence[SequenceRows], block_size: int, device: torch.device) -> Batch:
    """Lay the sequences' rows one after another. Raises ValueError for an empty share or a table too short."""
    queries = np.array([len(s.tokens) for s in sequences], dtype=np.int64)
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    contexts = starts + queries
    for index, sequence in enumerate(sequences):
        held = len(sequence.blocks) * block_size
        if not queries[index] or held < contexts[index]:
            raise ValueError(
                f"sequence {index} of the batch has {queries[index]} rows up to position {contexts[index]} and "
                f"blocks for {held} tokens; expected at least one row and a block for each"
            )
    bounds = np.zeros(len(sequences) + 1, dtype=np.int64)
    np.cumsum(queries, out=bounds[1:])
    owner = np.repeat(np.arange(len(sequences)), queries)
    positions = np.arange(bounds[-1]) - bounds[owner] + starts[owner]
    tables = np.zeros((len(sequences), max(len(s.blocks) for s in sequences)), dtype=np.int32)
    for row, sequence in zip(tables, sequences, strict=True):
        row[: len(sequence.blocks)] = sequence.blocks
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    wanted = [np.arange(end - s.logits, end) for s, end in zip(sequences, bounds[1:], strict=True)]

    def tensor(array: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Batch(
        tokens=tensor(np.concatenate([np.asarray(s.tokens, dtype=np.int64) for s in sequences])),
        positions=tensor(positions),
        slots=tensor(slots),
        query_starts=tensor(bounds.astype(np.int32)),
        context_lengths=tensor(contexts.astype(np.int32)),
        block_tables=tensor(tables),
        logit_rows=tensor(np.concatenate(wanted)),
        lengths=tuple(zip(queries.tolist(), contexts.tolist(), strict=True)),
    )
