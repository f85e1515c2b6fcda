"""Attention over striped keys: parts merge to the whole, whatever the stripe, the window and the empty shares."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.layers.striped import attend, merge_partials
from shoal.engine.ops.reference import write_kv
from shoal.engine.ops.reference_attention import paged_attention
from shoal.engine.parallel.shm import ShmGroup
from shoal.specs.model import AttentionSpec
from unit.engine.parallel.parallel_kit import make_groups, run

CPU = torch.device("cpu")
BLOCK, WIDTH, V_WIDTH = 2, 8, 4

# (queries, context): decodes, drafts, whole prompts, chunks over a cached prefix; contexts shorter than the group.
lengths_strategy = st.lists(
    st.integers(1, 40).flatmap(lambda context: st.tuples(st.integers(1, context), st.just(context))),
    min_size=1,
    max_size=5,
)


def rows_of(lengths: list[tuple[int, int]], tokens_a_block: int) -> tuple[list[SequenceRows], int]:
    """Shares with shuffled tables, and the blocks there are."""
    needed = [-(-context // tokens_a_block) for _, context in lengths]
    order = (torch.randperm(sum(needed)) + 1).tolist()
    shares = [
        SequenceRows([0] * queries, context - queries, [order.pop() for _ in range(count)])
        for (queries, context), count in zip(lengths, needed, strict=True)
    ]
    return shares, sum(needed) + 1


def filled(shares: list[SequenceRows], keys: list[Tensor], values: list[Tensor], size: int, index: int) -> LayerKv:
    """The memory of one rank of `size`: of every sequence the positions that are its own."""
    blocks = 1 + max(max(share.blocks) for share in shares)
    heads = keys[0].shape[1]
    # What nobody owns is large, so that reading it shows.
    kv = LayerKv(torch.full((blocks, BLOCK, heads, WIDTH), 1e3), torch.full((blocks, BLOCK, heads, V_WIDTH), 1e3))
    for share, k, v in zip(shares, keys, values, strict=True):
        whole = SequenceRows([0] * len(k), 0, share.blocks)
        batch = build_batch([whole], BLOCK, CPU, (index, size))
        write_kv(kv, k[batch.positions], v[batch.positions], batch.slots)
    return kv


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths_strategy,
    size=st.integers(2, 3),
    window=st.sampled_from([None, 1, 3, 9]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_striped_attention_is_attention(
    lengths: list[tuple[int, int]],
    size: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    kv_heads, heads = 2, 4
    keys = [torch.randn(context, kv_heads, WIDTH) for _, context in lengths]
    values = [torch.randn(context, kv_heads, V_WIDTH) for _, context in lengths]
    q = torch.randn(sum(queries for queries, _ in lengths), heads, WIDTH)
    sink = torch.randn(heads) if sinks else None
    alone, _ = rows_of(lengths, BLOCK)
    right = paged_attention(
        q, filled(alone, keys, values, 1, 0), build_batch(alone, BLOCK, CPU), 0.4, window, softcap, sink
    )
    shares, _ = rows_of(lengths, BLOCK * size)
    spec = AttentionSpec("gqa", heads, kv_heads, WIDTH, V_WIDTH, 0.4, None, window=window, softcap=softcap)

    def rank(group: ShmGroup) -> tuple[Tensor, Tensor]:
        batch = build_batch(shares, BLOCK, CPU, (group.index, size))
        assert batch.stripe is not None
        own = batch.stripe.by_rank.split(batch.stripe.sizes)[group.index]
        kv = filled(shares, keys, values, size, group.index)
        kv = LayerKv(kv.k.to(dtype), kv.v.to(dtype))
        sunk = None if sink is None else sink.to(dtype)
        found = attend(q[own].to(dtype), kv, batch, group, spec, sunk)
        assert found.dtype == dtype
        return own, found.float()

    merged = torch.full_like(right, torch.nan)
    for own, found in run(make_groups(size, slot_bytes=1 << 14, axis="cp"), rank):
        merged[own] = found
    tolerance = 2e-5 if dtype == torch.float32 else 6e-2
    torch.testing.assert_close(merged, right, atol=tolerance, rtol=tolerance)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.integers(1, 5),
    empty=st.lists(st.booleans(), min_size=5, max_size=5),
    scale=st.sampled_from([1.0, 40.0, 300.0]),
    seed=st.integers(0, 1000),
)
def test_parts_merge_to_the_softmax_over_all(parts: int, empty: list[bool], scale: float, seed: int) -> None:
    """Also where parts have no key, where none has any, and where exp of a score overflows."""
    generator = torch.Generator().manual_seed(seed)
    outputs, lses, scores, values = [], [], [], []
    for part in range(parts):
        count = 0 if empty[part] else 3
        score = torch.randn(count, generator=generator) * scale
        value = torch.randn(count, 4, generator=generator)
        scores.append(score)
        values.append(value)
        outputs.append((torch.softmax(score, 0) @ value).view(1, 1, 4))
        lses.append(torch.logsumexp(score, 0).view(1, 1) if count else torch.full((1, 1), -torch.inf))
    merged = merge_partials(outputs, lses)
    everything = torch.softmax(torch.cat(scores), 0) @ torch.cat(values)
    torch.testing.assert_close(merged[0, 0], everything, atol=1e-5, rtol=1e-4)
    if all(empty[:parts]):
        assert torch.equal(merged, torch.zeros(1, 1, 4))


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_strategy, size=st.integers(2, 4), wanted=st.integers(0, 3))
def test_every_row_has_one_owner_and_finds_its_place(
    lengths: list[tuple[int, int]], size: int, wanted: int
) -> None:
    shares, _ = rows_of(lengths, BLOCK * size)
    shares = [SequenceRows(s.tokens, s.start, s.blocks, min(wanted, len(s.tokens))) for s in shares]
    batches = [build_batch(shares, BLOCK, CPU, (index, size)) for index in range(size)]
    stripe = batches[0].stripe
    assert stripe is not None
    whole = stripe.whole
    assert stripe.sizes == tuple(len(batch.tokens) for batch in batches)
    gathered = torch.cat([batch.positions for batch in batches])
    assert torch.equal(gathered[stripe.order], whole.positions)
    assert torch.equal(whole.positions[stripe.by_rank], gathered)
    assert stripe.logit_sizes == tuple(len(batch.logit_rows) for batch in batches)
    chosen = torch.cat([batch.positions[batch.logit_rows] for batch in batches])
    assert torch.equal(chosen[stripe.logit_order], whole.positions[whole.logit_rows])
    slots = [tuple(zip(b.slots.tolist(), [i] * len(b.slots), strict=True)) for i, b in enumerate(batches)]
    assert len({slot for part in slots for slot in part}) == len(whole.tokens), "two tokens share a slot"
    for index, batch in enumerate(batches):
        assert bool((batch.positions % size == index).all())


def test_a_step_without_rows_is_a_batch_without_rows() -> None:
    for stripe in ((0, 1), (1, 2)):
        batch = build_batch([], BLOCK, CPU, stripe)
        assert batch.tokens.shape == batch.slots.shape == batch.logit_rows.shape == (0,)
        assert batch.lengths == ()
