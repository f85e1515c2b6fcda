"""The compiled products, norms, gates and rotation against plain torch: any shape, stride and size of number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernel_kit import (
    DEEP,
    EPS,
    QUICK,
    ROUNDING,
    assert_near,
    dtypes,
    kinds,
    numbers,
    ops_of,
    scales,
    seeds,
    strided,
    widths,
)
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import reference
from shoal.engine.ops.native_library import backend

rows_of = st.one_of(st.integers(0, 7), st.sampled_from([31, 48, 49, 97]))
odd_numbers = st.sampled_from([None, torch.nan, torch.inf, -torch.inf])


def _check_linear(kind, rows, inputs, outputs, dtype, scale, padding, biased, threads, odd, seed) -> None:
    x = strided(numbers((rows, inputs), scale, dtype, seed), padding)
    if odd is not None and rows:
        x[rows // 2, inputs - 1] = odd
    weight = numbers((outputs, inputs), 1.0, dtype, seed + 1)
    bias = numbers((outputs,), 1.0, dtype, seed + 2) if biased else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = ops_of(kind).linear(x, weight, bias)
        alone = [ops_of(kind).linear(x[i : i + 1], weight, bias) for i in range(min(rows, 3))]
    finally:
        torch.set_num_threads(before)
    for i, row in enumerate(alone):
        assert torch.equal(row.nan_to_num(7.0), out[i : i + 1].nan_to_num(7.0)), "a row depends on its neighbours"
    wide = None if bias is None else bias.double()
    expected = reference.linear(x.double(), weight.double(), wide)
    magnitude = x.double().abs() @ weight.double().abs().T + (0 if wide is None else wide.abs())
    bound = magnitude.nan_to_num(0, 0) * EPS * (inputs / 8 + 8)
    assert_near(out, expected.to(dtype), bound + expected.abs().nan_to_num(0, 0) * ROUNDING[dtype] + 1e-37)


linear_arguments = {
    "rows": rows_of,
    "inputs": widths,
    "outputs": widths,
    "dtype": dtypes,
    "scale": scales,
    "padding": st.sampled_from([0, 1, 9]),
    "biased": st.booleans(),
    "threads": st.sampled_from([1, 2]),
    "odd": odd_numbers,
    "seed": seeds,
}


@kinds
@QUICK
@given(**linear_arguments)
def test_linear(kind, **arguments) -> None:
    _check_linear(kind, **arguments)


@pytest.mark.slow
@kinds
@DEEP
@given(**linear_arguments)
def test_linear_deep(kind, **arguments) -> None:
    _check_linear(kind, **arguments)


@kinds
@QUICK
@given(
    rows=rows_of,
    width=widths,
    dtype=dtypes,
    wide_weight=st.booleans(),
    scale=scales,
    padding=st.sampled_from([0, 5]),
    odd=odd_numbers,
    seed=seeds,
)
def test_rms_norm(kind, rows, width, dtype, wide_weight, scale, padding, odd, seed) -> None:
    x = strided(numbers((rows, width), scale, dtype, seed), padding)
    if odd is not None and rows:
        x[0, width // 2] = odd
    weight = numbers((width,), 1.0, torch.float32 if wide_weight else dtype, seed + 1)
    out, expected = ops_of(kind).rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)
    assert_near(
        out, expected, expected.double().abs().nan_to_num(0, 0) * (2.5 * ROUNDING[dtype] + 2 * width * EPS) + 1e-37
    )
    add = numbers((rows, width), scale, dtype, seed + 2)
    whole = x.contiguous()
    total, normed = reference.add_rms_norm(whole.clone(), add, weight, 1e-5)
    ours, ours_normed = ops_of(kind).add_rms_norm(whole.clone(), add, weight, 1e-5)
    assert_near(ours, total, 0.0)
    size = normed.double().abs().nan_to_num(0, 0)
    assert_near(ours_normed, normed, size * (2.5 * ROUNDING[dtype] + 2 * width * EPS) + 1e-37)


@kinds
@QUICK
@given(
    rows=rows_of,
    width=widths,
    dtype=dtypes,
    scale=st.sampled_from([0.0, 1e-20, 1.0, 30.0, 1e3, 1e20, 3e38]),
    padding=st.sampled_from([0, 5]),
    odd=odd_numbers,
    seed=seeds,
)
def test_gates(kind, rows, width, dtype, scale, padding, odd, seed) -> None:
    x = numbers((rows, 2 * width), 1.0, dtype, seed)
    x[:, :width] = (x[:, :width].float() * scale).clamp(-3e38, 3e38).to(dtype)
    x = strided(x, padding)
    if odd is not None and rows:
        x[0, width // 2] = odd
    for name in ("silu_mul", "gelu_mul"):
        out, expected = getattr(ops_of(kind), name)(x), getattr(reference, name)(x)
        gate, up = x.double().nan_to_num(0, 0, 0).abs().chunk(2, -1)
        # Where the gate closes, both are a rounding away from nothing.
        closing = (4 * gate.clamp(max=30) + 1e-30) * up * 8 * EPS
        size = expected.double().abs().nan_to_num(0, 0)
        assert_near(out, expected, closing + size * (2.5 * ROUNDING[dtype] + 16 * EPS) + 1e-37)


@kinds
@QUICK
@given(
    rows=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (9, 3)]),
    width=st.sampled_from([2, 6, 16, 24, 64, 80]),
    v_width=st.sampled_from([1, 8, 64, 72]),
    turned=st.sampled_from([0.0, 0.5, 1.0]),
    interleaved=st.booleans(),
    dtype=dtypes,
    block_size=st.sampled_from([1, 3, 16]),
    scale=scales,
    seed=seeds,
)
def test_rope_write(kind, rows, heads, width, v_width, turned, interleaved, dtype, block_size, scale, seed) -> None:
    q_heads, kv_heads = heads
    packed = numbers((rows, (q_heads + kv_heads) * width + kv_heads * v_width), scale, dtype, seed)
    dim = int(width * turned) // 2 * 2
    rotation = None
    if dim:
        angles = numbers((rows, 1, dim // 2), 3.0, torch.float32, seed + 1)
        cos, sin = angles.cos(), angles.sin()
        if interleaved:
            parts = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            parts = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        rotation = (parts[0].to(dtype), parts[1].to(dtype))
    blocks = rows // block_size + 2
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(seed))[:rows]
    results = []
    for op in (ops_of(kind).rope_write, reference.rope_write):
        rows_copy = packed.clone()
        qk, v = rows_copy.split([(q_heads + kv_heads) * width, kv_heads * v_width], -1)
        q, k = qk.view(rows, q_heads + kv_heads, width).split([q_heads, kv_heads], 1)
        cache = LayerKv(
            torch.full((blocks, block_size, kv_heads, width), 5.0, dtype=dtype),
            torch.full((blocks, block_size, kv_heads, v_width), 5.0, dtype=dtype),
        )
        turned_q = op(q, k, v.view(rows, kv_heads, v_width), rotation, interleaved, cache, slots)
        results.append((turned_q.clone(), cache.k, cache.v))
    size = float(packed.abs().max()) if rows and packed.numel() else 0.0
    for ours, expected in zip(*results, strict=True):
        assert_near(ours, expected, 2 * ROUNDING[dtype] * size + 1e-37)
    assert torch.equal(results[0][2], results[1][2])


@kinds
@QUICK
@given(
    rows=st.integers(0, 9),
    kv_heads=st.integers(1, 3),
    width=st.sampled_from([1, 8, 24, 64, 80]),
    dtype=dtypes,
    scale=st.sampled_from([0.0, 1e-38, 1e-31, 1e-20, 1.0, 1e4, 3e37]),
    odd=odd_numbers,
    seed=seeds,
)
def test_write_in_eight_bits(kind, rows, kv_heads, width, dtype, scale, odd, seed) -> None:
    """Without a rotation nothing rounds before the steps do, so that codes and scales are the reference's."""
    k, v = (numbers((rows, kv_heads, width), scale, dtype, seed + i) for i in range(2))
    if odd is not None and rows:
        v[0, 0, width // 2] = odd
    slots = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:rows]
    caches = []
    for op in (ops_of(kind).rope_write, reference.rope_write):
        slots_of = (3, 4, kv_heads)
        cache = LayerKv(
            *(torch.full((*slots_of, width), 9, dtype=torch.int8) for _ in range(2)),
            *(torch.full(slots_of, 9.0, dtype=torch.bfloat16) for _ in range(2)),
        )
        op(numbers((rows, kv_heads, width), 1.0, dtype, 0), k, v, None, False, cache, slots)
        caches.append(cache)
    for ours, expected in zip(caches[0].parts, caches[1].parts, strict=True):
        assert torch.equal(ours.float().nan_to_num(-1e30), expected.float().nan_to_num(-1e30))
    read = caches[0].k.float() * caches[0].k_scales.float()[..., None]
    error = (read.flatten(0, 1)[slots] - k.float()).abs()
    assert bool((error <= k.float().abs().amax(-1, keepdim=True) / 127 * 0.51 + 1e-30).all())


@kinds
@pytest.mark.parametrize("threads", [2, 1, 3])
def test_the_pool_has_as_many_threads_as_torch_is_set_to_use(kind, threads) -> None:
    library = backend().library
    assert library is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ops_of(kind).linear(torch.ones(4, 64), torch.ones(4096, 64))
        assert library.functions.pool_threads() == threads
    finally:
        torch.set_num_threads(before)
        ops_of(kind).linear(torch.ones(1, 4), torch.ones(4, 4))
