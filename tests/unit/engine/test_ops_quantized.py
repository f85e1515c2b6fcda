"""Weights of eight and four bits, and the kernels that multiply with them."""

from itertools import product

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.engine.ops.kernels import REFERENCE, select_kernels
from shoal.engine.ops.native_library import backend
from shoal.engine.ops.quantized import GROUP, QuantizedWeight, Scheme
from shoal.engine.ops.reference_ops import ReferenceOps
from shoal.engine.ops.reference_quantized import Gate

SCHEMES: tuple[Scheme, ...] = ("int8", "int4")


@pytest.fixture(params=["avx512", "avx2", "portable"])
def kernels(request: pytest.FixtureRequest) -> ReferenceOps:
    if request.param not in backend().isas:
        pytest.skip(f"{request.param} does not run here: {backend().detail}")
    return select_kernels(f"native-{request.param}")


def close(found: Tensor, expected: Tensor) -> None:
    """Sums within groups are exact: the order in which groups are added up is all that may differ."""
    bound = float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 1.0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * max(bound, 1e-20), equal_nan=True)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (33, 70), (48, 96), (7, 576)])
def test_what_is_packed_is_what_was_rounded(scheme: Scheme, outputs: int, inputs: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
    back = QuantizedWeight.of(scheme, weight).dequantized()
    for start in range(0, inputs, GROUP):
        group, found = weight[:, start : start + GROUP], back[:, start : start + GROUP]
        # Scales and least values are halves: 11 bits of them are kept.
        slack = group.abs().amax(1, keepdim=True) * 2**-10 + 1e-6
        if scheme == "int8":
            step = group.abs().amax(1, keepdim=True) / 127
            assert ((found - group).abs() <= step * 0.5001 + slack).all()
            continue
        if group.shape[1] < GROUP:
            continue  # the last input stands in for those that are missing
        least = group.amin(1, keepdim=True)
        step = ((group.amax(1, keepdim=True) - least) / 15).clamp(min=1e-9)
        plain = ((group - least) / step).round() * step + least
        # In the mean square, never worse than levels that span the range.
        assert ((found - group).square().mean(1) <= (plain - group).square().mean(1) + slack[:, 0].square()).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_set_in_any_pieces_are_the_same_matrix(scheme: Scheme) -> None:
    weight = torch.randn(53, 70, generator=torch.Generator().manual_seed(1))
    whole, pieced = QuantizedWeight.of(scheme, weight), QuantizedWeight.empty(scheme, 53, 70)
    for start, end in ((0, 3), (3, 19), (19, 32), (32, 48), (48, 53)):
        pieced.set_rows(weight[start:end], start)
    assert torch.equal(whole.codes, pieced.codes)
    assert torch.equal(whole.scales, pieced.scales)
    rows = torch.tensor([52, 0, 17])
    assert torch.equal(whole.dequantized(rows), whole.dequantized()[rows])


def test_four_bits_keep_what_was_on_sixteen_levels() -> None:
    """A checkpoint that was rounded like this before loses nothing."""
    levels = torch.randint(0, 16, (32, 64), generator=torch.Generator().manual_seed(2)).float()
    levels[:, 0::GROUP], levels[:, 1::GROUP] = 0, 15
    weight = levels * 0.0625 - 0.5
    assert torch.equal(QuantizedWeight.of("int4", weight).dequantized(), weight)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 11),
    inputs=st.integers(1, 150),
    outputs=st.integers(1, 70),
    scheme=st.sampled_from(SCHEMES),
    gate=st.sampled_from([None, "silu", "gelu_tanh"]),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1.0, 1e-20, 1e15]),
)
def test_kernels_agree_with_the_reference(
    rows: int,
    inputs: int,
    outputs: int,
    scheme: Scheme,
    gate: Gate | None,
    bias: bool,
    dtype: torch.dtype,
    seed: int,
    scale: float,
) -> None:
    if not backend().isas:
        pytest.skip(backend().detail)
    rng = torch.Generator().manual_seed(seed)
    weight = QuantizedWeight.of(scheme, torch.randn(outputs, inputs, generator=rng))
    wide = torch.randn(rows + 1, inputs * (2 if gate else 1) + 3, generator=rng)
    if gate is None:
        wide *= scale
    # Rows further apart than they are long, as a slice of a wider product's rows are.
    x = wide.to(dtype)[:rows, : inputs * (2 if gate else 1)]
    b = torch.randn(outputs, generator=rng).to(dtype) if bias else None
    expected = REFERENCE.quantized_linear(x, weight, b, gate)
    for kind in backend().isas:
        found = select_kernels(f"native-{kind}").quantized_linear(x, weight, b, gate)
        assert found.dtype == dtype
        assert found.shape == (rows, outputs)
        if gate is not None or dtype == torch.bfloat16:
            # The gate's own rounding may move a number to the next step.
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=_loose(expected))
        else:
            close(found, expected)


def _loose(expected: Tensor) -> float:
    return 2e-2 * float(expected.float().abs().max()) if expected.numel() else 0.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_extreme_rows(kernels: ReferenceOps, scheme: Scheme) -> None:
    """All ±127 at once is the largest sum there is; rows that aren't finite are NaN and leave others alone."""
    outputs, inputs = 32, 512
    signs = torch.randint(0, 2, (outputs, inputs), generator=torch.Generator().manual_seed(3)) * 2.0 - 1
    weight = QuantizedWeight.of(scheme, signs)
    x = torch.stack((signs[0], -signs[0], torch.zeros(inputs), torch.full((inputs,), 1e-35), signs[1]))
    x = torch.cat((x, x))
    x[5, 17], x[6, 3] = torch.nan, torch.inf
    found = kernels.quantized_linear(x, weight)
    close(found, REFERENCE.quantized_linear(x, weight))
    assert found[5:7].isnan().all()
    assert found[:5].isfinite().all()
    assert found[7:].isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_is_the_same_bits_in_any_batch(kernels: ReferenceOps, scheme: Scheme) -> None:
    rng = torch.Generator().manual_seed(4)
    weight = QuantizedWeight.of(scheme, torch.randn(200, 300, generator=rng))
    x = torch.randn(67, 300, generator=rng)
    together = kernels.quantized_linear(x, weight)
    for first, count in product((0, 5, 64), (1, 2, 3)):
        assert torch.equal(
            kernels.quantized_linear(x[first : first + count], weight), together[first : first + count]
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 70), (200, 576)])
def test_rows_that_are_looked_up(
    kernels: ReferenceOps, scheme: Scheme, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    weight = QuantizedWeight.of(scheme, torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(5)))
    rows = torch.tensor([outputs - 1, 0, 17, 17])
    found = kernels.quantized_rows(weight, rows, dtype)
    assert torch.equal(found, weight.dequantized(rows).to(dtype))
    assert kernels.quantized_rows(weight, rows[:0], dtype).shape == (0, inputs)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 0, 7), (5, 4, 0), (0, 130, 1)])
def test_experts(kernels: ReferenceOps, scheme: Scheme, counts: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(5)
    stack = QuantizedWeight.empty(scheme, 40, 50, slots=3)
    for slot in range(3):
        stack.slot(slot).set_rows(torch.randn(40, 50, generator=rng))
    x, bias = torch.randn(sum(counts), 50, generator=rng), torch.randn(3, 40, generator=rng)
    close(kernels.quantized_experts(x, counts, stack, bias), REFERENCE.quantized_experts(x, counts, stack, bias))


def test_counts_that_are_not_of_the_rows_are_refused(kernels: ReferenceOps) -> None:
    with pytest.raises(ValueError, match="counts that sum to 3"):
        kernels.quantized_experts(torch.zeros(2, 32), (1, 2), QuantizedWeight.empty("int8", 16, 32, slots=2))


def test_codes_of_gguf_files_come_back() -> None:
    """Q8_0 and Q4_1 have the groups that are used here: rounding what they stand for finds their codes again."""
    values = torch.randn(32, 96, generator=torch.Generator().manual_seed(6)).numpy()
    kinds: tuple[tuple[GGMLQuantizationType, Scheme], ...] = (
        (GGMLQuantizationType.Q8_0, "int8"),
        (GGMLQuantizationType.Q4_1, "int4"),
    )
    for kind, scheme in kinds:
        stored = torch.from_numpy(dequantize(quantize(values, kind), kind)).view(32, 96)
        torch.testing.assert_close(QuantizedWeight.of(scheme, stored).dequantized(), stored, rtol=0, atol=2e-3)
        if scheme == "int8":
            assert torch.equal(QuantizedWeight.of(scheme, stored).dequantized(), stored)
