"""What the kernel fuzz tests share: the compiled kernels of each kind that runs here, and numbers that hurt."""

import os

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.engine.ops.native import NativeOps
from shoal.engine.ops.native_library import backend

EPS = float(torch.finfo(torch.float32).eps)
ROUNDING = {torch.float32: EPS, torch.bfloat16: 2.0**-7}

QUICK = settings(max_examples=int(os.environ.get("SHOAL_FUZZ_EXAMPLES", "25")), deadline=None)
DEEP = settings(max_examples=2000, deadline=None)

kinds = pytest.mark.parametrize(
    "kind", backend().isas or [pytest.param("", marks=pytest.mark.skip(backend().detail))]
)
dtypes = st.sampled_from([torch.float32, torch.bfloat16])
widths = st.one_of(st.integers(1, 70), st.sampled_from([96, 127, 128, 192, 576, 769, 1537]))
scales = st.sampled_from([0.0, 1e-38, 1e-20, 1e-3, 1.0, 30.0, 1e4, 1e12])
seeds = st.integers(0, 2**20)


def ops_of(kind: str) -> NativeOps:
    library = backend().library
    assert library is not None
    return NativeOps(library, kind)


def numbers(shape: tuple[int, ...], scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal ones times `scale`, in memory of their own, so that a sanitizer sees every step beyond it."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def strided(x: Tensor, padding: int) -> Tensor:
    """The same rows [T, n] further apart, with NaN between them: reading there shows."""
    if not padding or not x.numel():
        return x
    wide = torch.full((x.shape[0], x.shape[1] + padding), torch.nan, dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def assert_near(out: Tensor, expected: Tensor, tolerance: Tensor | float) -> None:
    """Same shape, same NaN, same infinities, and elsewhere no further than `tolerance`."""
    assert out.shape == expected.shape
    out, expected = out.double(), expected.double()
    odd = ~expected.isfinite()
    assert torch.equal(out[odd].nan_to_num(7.0), expected[odd].nan_to_num(7.0)), "NaN or infinity elsewhere"
    difference = (out - expected).abs().masked_fill(odd, 0.0)
    if not bool((difference <= tolerance).all()):
        worst = (difference - tolerance).flatten().argmax()
        raise AssertionError(
            f"{out.flatten()[worst]:g} instead of {expected.flatten()[worst]:g} at element {int(worst)} "
            f"of {tuple(out.shape)}"
        )
