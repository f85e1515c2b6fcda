"""What a rank's model sees of one step: flat rows, prefill and decode mixed, no padding.

With context parallelism, the token at position p belongs to rank p mod n, whose model computes its row and whose KV
memory keeps it (docs/parallel.md). A rank's batch then has its own rows only, and a `Stripe` says where they lie
among those of all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a batch that belong to one LoRA adapter."""

    adapter: int
    """Its number among the replica's adapters, from 1."""
    rows: Tensor | None
    """[n] int64, ascending; None: all rows of the batch."""


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
    stripe: "Stripe | None" = None
    """Only with context parallelism; attention is then over `stripe.whole`."""
    key_stride: int = 1
    """Cached key j of a sequence is that of position j * key_stride + key_offset. Lengths count positions."""
    key_offset: int = 0
    adapters: tuple[AdapterRows, ...] = ()
    """Per adapter that has rows here; rows of the base model are in none."""
    plans: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
    """What the attention ops worked out for this batch, kept for the next layer of the same kind."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """A step whose sequences are striped over the ranks of a group, as one of the ranks needs to know it."""

    whole: Batch
    """All rows of the step. Attention over it reads the keys that this rank has: every n-th."""
    sizes: tuple[int, ...]
    """Rows of each rank."""
    by_rank: Tensor
    """[rows of the step] int64: rows of `whole`, those of the first rank first, each rank's in its own order."""
    order: Tensor
    """[rows of the step] int64, the inverse: where a row of `whole` is when ranks' rows lie one after another."""
    logit_sizes: tuple[int, ...]
    """Rows of each rank whose logits are wanted."""
    logit_order: Tensor
    """[R of all ranks] int64: as `order`, of the rows whose logits are wanted."""


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
    table: object = None
    """The same from step to step while `blocks` only grows; None: not known."""
    adapter: int = 0
    """The number of the LoRA adapter that its rows belong to; 0: the base model."""


def build_batch(
    sequences: Sequence[SequenceRows],
    block_size: int,
    device: torch.device,
    stripe: tuple[int, int] = (0, 1),
) -> Batch:
    """Lay the sequences' rows one after another; of no sequences, a batch without rows.

    `stripe` is (index, size) of this rank among those that sequences are striped over; `block_size` counts tokens
    that one rank keeps in a block. Raises ValueError for an empty share or a table too short.
    """
    index, size = stripe
    rows = _lay(sequences, block_size * size)
    if size == 1:
        return _batch(rows, block_size, device)
    owners = rows.positions % size
    by_rank = np.argsort(owners, kind="stable")
    wanted_owners = owners[rows.wanted]
    among = Stripe(
        whole=_batch(rows, block_size, device, stripe),
        sizes=tuple(np.bincount(owners, minlength=size).tolist()),
        by_rank=torch.from_numpy(by_rank).to(device),
        order=torch.from_numpy(np.argsort(by_rank)).to(device),
        logit_sizes=tuple(np.bincount(wanted_owners, minlength=size).tolist()),
        logit_order=torch.from_numpy(np.argsort(np.argsort(wanted_owners, kind="stable"))).to(device),
    )
    return _batch(rows, block_size, device, stripe, np.flatnonzero(owners == index), among)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of a step, on the host."""

    tokens: Integers
    positions: Integers
    owner: Integers
    """[T] the sequence of each row."""
    queries: Integers
    """[S]"""
    contexts: Integers
    tables: npt.NDArray[np.int32]
    wanted: Integers
    """Rows whose logits are wanted."""
    adapters: Integers | None
    """[S]; None: all rows are the base model's."""


def _lay(sequences: Sequence[SequenceRows], tokens_a_block: int) -> _Rows:
    queries = np.array([len(s.tokens) for s in sequences], dtype=np.int64)
    count = len(sequences)
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    contexts = starts + queries
    for index, sequence in enumerate(sequences):
        held = len(sequence.blocks) * tokens_a_block
        if not queries[index] or held < contexts[index]:
            raise ValueError(
                f"sequence {index} of the batch has {queries[index]} rows up to position {contexts[index]} and "
                f"blocks for {held} tokens; expected at least one row and a block for each"
            )
    ends = np.cumsum(queries)
    if count == int(ends[-1] if count else 0):  # a row each, as in any step without prefill
        owner, positions = np.arange(count), starts
    else:
        owner = np.repeat(np.arange(count), queries)
        positions = np.arange(len(owner)) - (ends - queries)[owner] + starts[owner]
    tables = np.zeros((len(sequences), max((len(s.blocks) for s in sequences), default=0)), dtype=np.int32)
    for row, sequence in zip(tables, sequences, strict=True):
        row[: len(sequence.blocks)] = sequence.blocks
    return _Rows(
        tokens=np.fromiter(chain.from_iterable(s.tokens for s in sequences), np.int64, len(owner)),
        positions=positions,
        owner=owner,
        queries=queries,
        contexts=contexts,
        tables=tables,
        wanted=np.array(
            [row for s, e in zip(sequences, ends.tolist(), strict=True) for row in range(e - s.logits, e)], np.int64
        ),
        adapters=np.array([s.adapter for s in sequences]) if any(s.adapter for s in sequences) else None,
    )


def _adapter_rows(rows: _Rows, owner: Integers, device: torch.device) -> tuple[AdapterRows, ...]:
    """Which of the rows that belong to the sequences `owner` are which adapter's."""
    if rows.adapters is None:
        return ()
    adapters = rows.adapters[owner]
    present = np.unique(adapters).tolist()
    if len(present) == 1:
        return (AdapterRows(present[0], None),) if present[0] else ()
    return tuple(
        AdapterRows(adapter, torch.from_numpy(np.flatnonzero(adapters == adapter)).to(device))
        for adapter in present
        if adapter
    )


def _batch(
    rows: _Rows,
    block_size: int,
    device: torch.device,
    stripe: tuple[int, int] = (0, 1),
    own: Integers | None = None,
    among: Stripe | None = None,
) -> Batch:
    """The batch of the rows `own`; None: of all."""
    index, size = stripe
    tokens, positions, owner, queries, wanted = rows.tokens, rows.positions, rows.owner, rows.queries, rows.wanted
    if own is not None:
        tokens, positions, owner = tokens[own], positions[own], owner[own]
        queries = np.bincount(owner, minlength=len(rows.contexts))
        wanted = np.flatnonzero(np.isin(own, wanted, assume_unique=True))
    local = positions // size if size > 1 else positions
    slots = rows.tables[owner, local // block_size].astype(np.int64) * block_size + local % block_size
    bounds = np.zeros(len(queries) + 1, dtype=np.int32)
    np.cumsum(queries, out=bounds[1:])

    def tensor(array: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Batch(
        tokens=tensor(tokens),
        positions=tensor(positions),
        slots=tensor(slots),
        query_starts=tensor(bounds),
        context_lengths=tensor(rows.contexts.astype(np.int32)),
        block_tables=tensor(rows.tables),
        logit_rows=tensor(wanted),
        lengths=tuple(zip(queries.tolist(), rows.contexts.tolist(), strict=True)),
        stripe=among,
        key_stride=size,
        key_offset=index,
        adapters=_adapter_rows(rows, owner, device),
    )
