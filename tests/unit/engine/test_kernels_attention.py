"""The compiled paged attention against plain torch: any batch, block size, window, stripe and size of number."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernel_kit import DEEP, EPS, QUICK, ROUNDING, assert_near, dtypes, kinds, numbers, ops_of, seeds
from shoal.engine.batch import Batch, SequenceRows, build_batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import reference_attention
from shoal.engine.ops.reference import quantize_heads

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sizes:
    heads: tuple[int, int]
    """(KV heads, query heads of each)"""
    width: int
    v_width: int
    block_size: int


def _batch(lengths, block_size: int, stripe: tuple[int, int], seed: int) -> tuple[Batch, int]:
    """(queries, cached) of each sequence, with blocks dealt out of order; and the number of blocks."""
    held = [-(-(queries + cached) // (block_size * stripe[1])) for queries, cached in lengths]
    order = (torch.randperm(sum(held), generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    shares = []
    for (queries, cached), count in zip(lengths, held, strict=True):
        shares.append(SequenceRows([0] * queries, cached, [order.pop() for _ in range(count)]))
    batch = build_batch(shares, block_size, CPU, stripe)
    return (batch if batch.stripe is None else batch.stripe.whole), sum(held) + 1


def _cache(slots: tuple[int, int, int], sizes: Sizes, dtype: torch.dtype, seed: int) -> LayerKv:
    wide = dtype if dtype != torch.int8 else torch.float32
    k, v = (
        numbers((*slots, sizes.width), 1.0, wide, seed + 1),
        numbers((*slots, sizes.v_width), 1.0, wide, seed + 2),
    )
    if dtype != torch.int8:
        return LayerKv(k, v)
    (k, k_scales), (v, v_scales) = quantize_heads(k), quantize_heads(v)
    return LayerKv(k, v, k_scales, v_scales)


def _read(cache: Tensor, scales: Tensor | None) -> Tensor:
    return cache.float() if scales is None else cache.float() * scales.float()[..., None]


def _check(kind, lengths, sizes, stripe, dtype, kv_dtype, window, softcap, sinks, scale, seed) -> None:
    kv_heads, shared = sizes.heads
    batch, blocks = _batch(lengths, sizes.block_size, stripe, seed)
    rows = sum(queries for queries, _ in lengths)
    q = numbers((rows, kv_heads * shared, sizes.width), scale, dtype, seed)
    kv = _cache((blocks, sizes.block_size, kv_heads), sizes, kv_dtype, seed)
    read = LayerKv(_read(kv.k, kv.k_scales), _read(kv.v, kv.v_scales))
    sink = numbers((kv_heads * shared,), 2.0, torch.float32, seed + 3) if sinks else None
    factor = sizes.width**-0.5
    arguments = (batch, factor, window, softcap, sink)
    lse, expected_lse = q.new_empty(2, rows, kv_heads * shared, dtype=torch.float32)
    out = ops_of(kind).paged_attention(q, kv, *arguments, lse)
    assert torch.equal(ops_of(kind).paged_attention(q, kv, *arguments), out)
    # In fp32: the reference rounds its scores to the compute dtype, which at bf16 is coarser than the kernel.
    expected = reference_attention.paged_attention(q.float(), read, *arguments, expected_lse)
    largest = scale * factor * sizes.width * 16
    error = EPS * (16 + largest * 4 if softcap is None else 16 + min(largest, softcap) * 4 + largest)
    assert_near(out, expected.to(dtype), 8 * error + 2 * ROUNDING[dtype] * 4 + 1e-5)
    assert_near(lse, expected_lse, 8 * error + 1e-4 * (1 + expected_lse.abs().nan_to_num(0, 0, 0)))


arguments = {
    "lengths": st.lists(
        st.tuples(st.one_of(st.just(1), st.integers(1, 5), st.integers(17, 40)), st.integers(0, 150)),
        min_size=0,
        max_size=5,
    ),
    "sizes": st.builds(
        Sizes,
        st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 3), (1, 25), (2, 4)]),
        st.sampled_from([1, 4, 24, 64, 72, 128]),
        st.sampled_from([1, 8, 33, 64, 100]),
        st.sampled_from([1, 3, 16, 64]),
    ),
    "stripe": st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
    "dtype": dtypes,
    "kv_dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    "window": st.one_of(st.none(), st.integers(1, 70)),
    "softcap": st.one_of(st.none(), st.sampled_from([0.5, 20.0])),
    "sinks": st.booleans(),
    "scale": st.sampled_from([0.0, 1e-20, 1.0, 30.0, 1000.0]),
    "seed": seeds,
}


@kinds
@QUICK
@given(**arguments)
def test_attention(kind, **drawn) -> None:
    _check(kind, **drawn)


@pytest.mark.slow
@kinds
@DEEP
@given(**arguments)
def test_attention_deep(kind, **drawn) -> None:
    _check(kind, **drawn)


@kinds
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("window", [None, 100, 600])
def test_long_contexts_are_merged_from_spans(kind, threads, window) -> None:
    sizes = Sizes((2, 3), 64, 64, 16)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lengths = [(1, 1500), (3, 700), (1, 511), (1, 512), (30, 1000)]
        _check(kind, lengths, sizes, (0, 1), torch.float32, torch.float32, window, None, False, 1.0, 3)
    finally:
        torch.set_num_threads(before)


@kinds
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("heads", [(3, 3), (5, 6), (2, 25)])
def test_many_sequences_whose_heads_are_read_together(kind, heads, window, kv_dtype) -> None:
    lengths = [(1, 70 * i) for i in range(20)] + [(3, 40)]
    _check(kind, lengths, Sizes(heads, 24, 16, 4), (0, 1), torch.float32, kv_dtype, window, None, False, 1.0, 3)


@kinds
@pytest.mark.parametrize("worth", [0.0, torch.nan])
def test_a_key_that_a_row_does_not_see_may_be_worth_anything(kind, worth) -> None:
    sizes = Sizes((1, 1), 8, 8, 4)
    batch, blocks = _batch([(6, 0)], 4, (0, 1), 0)
    q, kv = numbers((6, 1, 8), 1.0, torch.float32, 3), _cache((blocks, 4, 1), sizes, torch.int8, 0)
    assert kv.k_scales is not None
    right = ops_of(kind).paged_attention(q, kv, batch, 0.3)
    kv.k_scales.view(-1)[batch.slots[-1]] = worth
    assert torch.equal(ops_of(kind).paged_attention(q, kv, batch, 0.3)[:-1], right[:-1])


@kinds
def test_a_row_that_sees_no_key_is_zero_and_minus_infinity(kind) -> None:
    """The second of two ranks has no key of a sequence of one token."""
    batch, blocks = _batch([(1, 0), (2, 3)], 4, (1, 2), 0)
    kv = LayerKv(
        numbers((blocks, 4, 1, 8), 1.0, torch.float32, 1), numbers((blocks, 4, 1, 8), 1.0, torch.float32, 2)
    )
    lse = torch.empty(3, 2)
    out = ops_of(kind).paged_attention(numbers((3, 2, 8), 1.0, torch.float32, 3), kv, batch, 0.3, lse=lse)
    assert not out[0].any()
    assert bool(lse[0].isneginf().all())
    assert bool(lse[1:].isfinite().all())


@kinds
def test_latents_are_read_as_keys_and_in_part_as_values(kind) -> None:
    """The value is the first part of the key, so that its slots are further apart than it is wide."""
    batch, blocks = _batch([(1, 9), (4, 20)], 4, (0, 1), 5)
    k = numbers((blocks, 4, 1, 40), 1.0, torch.float32, 1)
    kv = LayerKv(k, k[..., :24])
    q = numbers((5, 6, 40), 1.0, torch.float32, 3)
    out, expected = (
        ops_of(kind).paged_attention(q, kv, batch, 0.2),
        reference_attention.paged_attention(q, LayerKv(k, k[..., :24].contiguous()), batch, 0.2),
    )
    assert_near(out, expected, 1e-5)


@pytest.mark.parametrize("lengths", [[(1, 30), (1, 7), (20, 4)], [(2, 9)]])
def test_the_reference_reads_eight_bits_too(lengths) -> None:
    sizes = Sizes((2, 3), 24, 16, 4)
    batch, blocks = _batch(lengths, 4, (0, 1), 1)
    kv = _cache((blocks, 4, 2), sizes, torch.int8, 0)
    q = numbers((sum(queries for queries, _ in lengths), 6, 24), 1.0, torch.float32, 3)
    whole = LayerKv(_read(kv.k, kv.k_scales), _read(kv.v, kv.v_scales))
    out = reference_attention.paged_attention(q, kv, batch, 0.2)
    assert_near(out, reference_attention.paged_attention(q, whole, batch, 0.2), 1e-6)
