"""How a mixed batch is cut into pieces that plain torch can attend to in one go each.

Worked out once a step and a kind of layer, not once a layer: the cost of a step in Python is a few operations a
group, whatever the number of sequences.

    rows of the batch     d d d d │ p p p p p p p │ p p p
                          decode    prefill         prefill with a cached prefix
    groups                [4 × 1]   [1 × 7] causal  [1 × 3] masked
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine.batch import Batch

SHORT_QUERY = 16
"""Queries up to this length (decode, draft verification) are batched over sequences; longer ones go one by one."""
GROUP_TOKENS = 2048
"""Most keys gathered at once for a group of short queries: what is gathered is soon read again, from the cache."""
WASTE = 0.25
"""Padding a group may hold, as a share of its keys, before a new group is begun …"""
WASTE_FREE = 512
"""… beyond this many keys, which cost less than the operations of another group."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """S sequences with n queries each, over L keys (fewer are padded and masked)."""

    sequences: int
    queries: int
    keys: int
    rows: slice | Tensor
    """The batch rows of the group's queries: contiguous, or an index [S * n]."""
    slots: Tensor
    """Where the keys lie: [S * K * L] rows of D for short queries, [L] rows of K * D for a long one."""
    mask: Tensor | None
    """[S, 1, n, 1, L] added to the scores: 0 or -inf. None: every query sees every key, or `causal`."""
    causal: bool
    """Query i sees keys 0 … i: a whole prompt without a cached prefix."""

    @property
    def short(self) -> bool:
        return self.queries <= SHORT_QUERY


@dataclass(frozen=True, slots=True)
class _Share:
    """One sequence's queries and the keys they see, counted among the keys that are here."""

    sequence: int
    row: int
    queries: int
    context: int
    first_key: int
    keys: int
    """0 when the keys that the queries see are all elsewhere."""


def plan_attention(
    batch: Batch, window: int | None, kv_heads: int, block_size: int, dtype: torch.dtype
) -> tuple[AttentionGroup, ...]:
    """The groups of a batch for layers with this window, kept on the batch for the next layer that asks."""
    key = (window, kv_heads, block_size, dtype)
    found = batch.plans.get(key)
    if found is None:
        groups = _groups(_shares(batch, window))
        found = tuple(_build(batch, group, window, kv_heads, block_size, dtype) for group in groups)
        batch.plans[key] = found
    assert isinstance(found, tuple)
    return found


def _shares(batch: Batch, window: int | None) -> list[_Share]:
    shares, row = [], 0
    for index, (queries, context) in enumerate(batch.lengths):
        first_position = 0 if window is None else max(0, context - queries + 1 - window)
        first, end = _keys_before(first_position, batch), _keys_before(context, batch)
        shares.append(_Share(index, row, queries, context, first, end - first))
        row += queries
    return shares


def _keys_before(position: int, batch: Batch) -> int:
    """How many of the keys that are here belong to earlier positions: ⌈(position - offset) / stride⌉."""
    return max(0, -((batch.key_offset - position) // batch.key_stride))


def _groups(shares: list[_Share]) -> Iterator[list[_Share]]:
    short = [share for share in shares if share.queries <= SHORT_QUERY]
    short.sort(key=lambda share: (share.queries, -share.keys, share.sequence))
    group: list[_Share] = []
    for share in short:
        if group and not _fits(group, share):
            yield group
            group = []
        group.append(share)
    if group:
        yield group
    for share in shares:
        if share.queries > SHORT_QUERY:
            yield [share]


def _fits(group: list[_Share], share: _Share) -> bool:
    longest = group[0].keys
    padded = longest * (len(group) + 1)
    waste = padded - share.keys - sum(member.keys for member in group)
    return (
        share.queries == group[0].queries
        and padded <= GROUP_TOKENS
        and (waste <= WASTE_FREE or waste <= WASTE * padded)
    )


def _build(
    batch: Batch, group: list[_Share], window: int | None, kv_heads: int, block_size: int, dtype: torch.dtype
) -> AttentionGroup:
    device = batch.block_tables.device
    # At least one, if masked: operations on no keys at all are not defined the same way everywhere.
    queries, keys = group[0].queries, max(1, *(share.keys for share in group))
    facts = torch.tensor([(s.sequence, s.row, s.first_key, s.context) for s in group]).to(device)
    sequence, row, first, context = facts.unbind(1)
    local = first[:, None] + torch.arange(keys, device=device)
    key_positions = local * batch.key_stride + batch.key_offset
    # Padding may point past the table; what it reads is masked.
    blocks = (local // block_size).clamp_(max=batch.block_tables.shape[1] - 1)
    tables = batch.block_tables.index_select(0, sequence)
    slots = tables.gather(1, blocks).long() * block_size + local % block_size
    rows: slice | Tensor = row[:, None] + torch.arange(queries, device=device)
    if all(share.row == group[0].row + i * queries for i, share in enumerate(group)):
        rows = slice(group[0].row, group[0].row + len(group) * queries)
    elif isinstance(rows, Tensor):
        rows = rows.flatten()
    whole = len(group) == 1 and group[0].context == queries and (window is None or window >= queries)
    alike = queries == 1 and all(share.keys == keys for share in group)
    causal = whole and queries > SHORT_QUERY and batch.key_stride == 1
    mask = None
    if not (alike or causal):
        query_positions = (context - queries)[:, None] + torch.arange(queries, device=device)
        mask = _mask(query_positions, key_positions, window, dtype)
    if queries <= SHORT_QUERY:
        heads = torch.arange(kv_heads, device=device)[:, None]
        slots = slots[:, None, :] * kv_heads + heads
    return AttentionGroup(len(group), queries, keys, rows, slots.flatten(), mask, causal)


def _mask(queries: Tensor, keys: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """queries [S, n] and keys [S, L] are positions -> [S, 1, n, 1, L]."""
    distance = queries[:, :, None] - keys[:, None, :]
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return mask[:, None, :, None, :]
