"""Paged attention against a dense implementation that shares no code with it, over random mixed batches."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.reference import write_kv
from shoal.engine.ops.reference_attention import paged_attention

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """A mixed batch with its keys and values both paged and whole."""

    q: Tensor
    kv: LayerKv
    shares: list[SequenceRows]
    keys: list[Tensor]
    values: list[Tensor]
    block_size: int

    @property
    def batch(self):
        return build_batch(self.shares, self.block_size, CPU)


def _problem(lengths, kv_heads: int, shared: int, width: int, v_width: int, block_size: int, seed: int) -> Problem:
    """`lengths` are (queries, context) pairs. Slots nobody owns hold large numbers, so that reading one shows."""
    torch.manual_seed(seed)
    needed = [-(-context // block_size) for _, context in lengths]
    order = (torch.randperm(sum(needed) + 2) + 1).tolist()
    blocks = len(order) + 1
    kv = LayerKv(
        torch.full((blocks, block_size, kv_heads, width), 1e4),
        torch.full((blocks, block_size, kv_heads, v_width), 1e4),
    )
    shares, keys, values = [], [], []
    for (queries, context), count in zip(lengths, needed, strict=True):
        table = [order.pop() for _ in range(count)]
        k, v = torch.randn(context, kv_heads, width), torch.randn(context, kv_heads, v_width)
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(context)])
        write_kv(kv, k, v, slots)
        shares.append(SequenceRows([0] * queries, context - queries, table))
        keys.append(k)
        values.append(v)
    q = torch.randn(sum(queries for queries, _ in lengths), kv_heads * shared, width)
    return Problem(q, kv, shares, keys, values, block_size)


def _dense(problem: Problem, scale: float, window, softcap, sinks) -> tuple[Tensor, Tensor]:
    """One row and one head at a time, in double precision, straight from the definition."""
    out, lse, row = [], [], 0
    heads = problem.q.shape[1]
    for share, k, v in zip(problem.shares, problem.keys, problem.values, strict=True):
        shared = heads // k.shape[1]
        for position in range(share.start, share.start + len(share.tokens)):
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(heads):
                seen_k = k[first : position + 1, head // shared].double()
                scores = seen_k @ problem.q[row, head].double() * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = scores.exp()
                total = weights.sum() + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
                out.append(weights @ v[first : position + 1, head // shared].double() / total)
                lse.append(total.log())
            row += 1
    return torch.stack(out).view(row, heads, -1), torch.stack(lse).view(row, heads)


lengths_strategy = st.lists(
    st.tuples(st.one_of(st.just(1), st.integers(1, 6), st.integers(17, 24)), st.integers(0, 40)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(
    lengths=lengths_strategy,
    heads=st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 2)]),
    widths=st.sampled_from([(4, 4), (8, 8), (8, 4)]),
    block_size=st.sampled_from([1, 4, 16]),
    window=st.one_of(st.none(), st.integers(1, 50)),
    softcap=st.one_of(st.none(), st.floats(0.5, 20)),
    with_sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_definition(lengths, heads, widths, block_size, window, softcap, with_sinks, seed) -> None:
    problem = _problem(lengths, *heads, *widths, block_size, seed)
    sinks = torch.randn(problem.q.shape[1]) if with_sinks else None
    scale = widths[0] ** -0.5
    expected, expected_lse = _dense(problem, scale, window, softcap, sinks)
    out = paged_attention(problem.q, problem.kv, problem.batch, scale, window, softcap, sinks)
    lse = problem.q.new_empty(problem.q.shape[:2])
    same = paged_attention(problem.q, problem.kv, problem.batch, scale, window, softcap, sinks, lse)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(same.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_long_queries_in_slices_equal_the_fused_path(window, monkeypatch) -> None:
    """With the score matrix bounded to a few rows; the log-sum-exp path never uses the fused attention."""
    monkeypatch.setattr("shoal.engine.ops.reference_attention.SCORE_ELEMENTS", 600)
    problem = _problem([(40, 40), (33, 60)], 2, 3, 8, 8, 4, 0)
    out = paged_attention(problem.q, problem.kv, problem.batch, 0.3, window)
    lse = problem.q.new_empty(problem.q.shape[:2])
    sliced = paged_attention(problem.q, problem.kv, problem.batch, 0.3, window, lse=lse)
    torch.testing.assert_close(sliced, out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [1, 4, 5])
def test_bug_27_a_window_is_not_off_by_one(window) -> None:
    """vllm#51756, mlx-lm#390: values outside (p - window, p] must not matter at all; those inside must."""
    problem = _problem([(1, 20)], 1, 1, 4, 4, 4, 0)
    before = paged_attention(problem.q, problem.kv, problem.batch, 1.0, window)

    def changed(position: int) -> bool:
        values = problem.kv.v.clone()
        table = problem.shares[0].blocks
        values[table[position // 4], position % 4] += 1.0
        after = paged_attention(problem.q, LayerKv(problem.kv.k, values), problem.batch, 1.0, window)
        return not torch.equal(before, after)

    assert [position for position in range(20) if changed(position)] == list(range(20 - window, 20))


def test_shards_merge_by_log_sum_exp() -> None:
    """Attention over two halves of the keys, merged, is attention over all of them."""
    whole = _problem([(1, 24)], 2, 2, 8, 8, 4, 3)
    expected = paged_attention(whole.q, whole.kv, whole.batch, 0.4)
    parts = []
    for half in (slice(0, 12), slice(12, 24)):
        part = _problem([(1, 12)], 2, 2, 8, 8, 4, 4)
        slots = build_batch([SequenceRows([0] * 12, 0, part.shares[0].blocks)], part.block_size, CPU).slots
        write_kv(part.kv, whole.keys[0][half], whole.values[0][half], slots)
        lse = whole.q.new_empty(whole.q.shape[:2])
        parts.append((paged_attention(whole.q, part.kv, part.batch, 0.4, lse=lse), lse))
    total = torch.logaddexp(parts[0][1], parts[1][1])
    merged = sum((lse - total).exp()[..., None] * out for out, lse in parts)
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-5)


def test_many_unequal_decodes_share_few_groups() -> None:
    from shoal.engine.ops.attention_plan import GROUP_TOKENS, plan_attention

    problem = _problem([(1, 30 + 7 * i) for i in range(20)], 1, 1, 4, 4, 16, 0)
    groups = plan_attention(problem.batch, None, 1, 16, torch.float32)
    assert sum(group.sequences for group in groups) == 20
    assert len(groups) <= 5
    assert all(group.sequences * group.keys <= GROUP_TOKENS for group in groups)


def test_a_plan_is_worked_out_once_a_window() -> None:
    from shoal.engine.ops.attention_plan import plan_attention

    batch = _problem([(1, 9), (20, 20)], 1, 1, 4, 4, 4, 0).batch
    first = plan_attention(batch, None, 1, 4, torch.float32)
    assert plan_attention(batch, None, 1, 4, torch.float32) is first
    assert plan_attention(batch, 5, 1, 4, torch.float32) is not first
