"""A quick comparison of compiled kernels with the reference, on the processor at hand.

The tests of the package fuzz the kernels where it is built. This says whether they are right where it runs: a wrong
instruction, a miscompiled variant or a broken emulator gives errors as large as the results themselves.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import SCALE_TYPE, LayerKv
from shoal.engine.ops.kernels import REFERENCE
from shoal.engine.ops.quantized import QuantizedWeight, Scheme
from shoal.engine.ops.reference_ops import ReferenceOps

_TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2.0**-5}
"""Largest error as a share of the largest number of the result."""
_ROWS = (1, 5, 33)
"""One row runs other code than several, and so do whole tiles."""
_SCHEMES: tuple[Scheme, ...] = ("int8", "int4")
_DTYPES = (torch.float32, torch.bfloat16)
_HEADS, _KV_HEADS, _WIDTH, _BLOCK = 4, 2, 32, 16


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What came of comparing one implementation with the reference."""

    name: str
    checks: int
    failures: tuple[str, ...]
    """One line per check that failed: the op, its shape or dtype, and the error."""
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        if self.passed:
            return f"passed: {self.checks} products agree with the reference ({self.seconds * 1e3:.0f} ms)"
        return f"FAILED: {len(self.failures)} of {self.checks} products are wrong: {'; '.join(self.failures)}"


Check = tuple[str, Callable[[ReferenceOps], Tensor]]


def self_test(kernels: ReferenceOps) -> SelfTest:
    """Compare every kind of op with `REFERENCE`, on small inputs of a fixed seed and one thread."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    checks = 0
    failures = []
    # To wake a second thread for products as small as these takes longer than they do.
    torch.set_num_threads(1)
    try:
        for name, compute in _checks():
            checks += 1
            error = _error(compute(kernels), compute(REFERENCE))
            if error is not None:
                failures.append(f"{name}: {error}")
    finally:
        torch.set_num_threads(threads)
    return SelfTest(kernels.name, checks, tuple(failures), time.perf_counter() - started)


def _error(out: Tensor, expected: Tensor) -> str | None:
    if out.shape != expected.shape or out.dtype != expected.dtype:
        return f"{out.dtype} {tuple(out.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    largest = float(expected.abs().max())
    error = float((out.double() - expected.double()).abs().max())
    # Not `>`: an error that is NaN must fail.
    if error <= _TOLERANCE[expected.dtype] * largest:
        return None
    return f"off by {error:.3g}, the largest result is {largest:.3g}"


def _checks() -> Iterator[Check]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    packed = [QuantizedWeight.of(scheme, normal(70, 96)) for scheme in _SCHEMES]
    for dtype in _DTYPES:
        weight, norm = normal(70, 96, dtype=dtype), normal(96, dtype=dtype)
        for rows in _ROWS:
            yield from _row_checks(normal(rows, 96, dtype=dtype), weight, norm)
            yield from (_quantized(normal(rows, 96, dtype=dtype), matrix) for matrix in packed)
        for cache in (dtype, torch.int8):
            yield _attention(normal, dtype, cache)


def _label(op: str, x: Tensor) -> str:
    return f"{op} {str(x.dtype)[6:]}, {len(x)} rows"


def _row_checks(x: Tensor, weight: Tensor, norm: Tensor) -> Iterator[Check]:
    yield _label("linear", x), lambda k: k.linear(x, weight)
    yield _label("rms_norm", x), lambda k: k.rms_norm(x, norm, 1e-6)
    yield _label("add_rms_norm", x), lambda k: torch.cat(k.add_rms_norm(x.clone(), x.flip(0), norm, 1e-6))
    yield _label("silu_mul", x), lambda k: k.silu_mul(x)
    yield _label("gelu_mul", x), lambda k: k.gelu_mul(x)


def _quantized(x: Tensor, weight: QuantizedWeight) -> Check:
    return _label(f"{weight.scheme} linear", x), lambda k: k.quantized_linear(x, weight)


def _attention(normal: Callable[..., Tensor], dtype: torch.dtype, cache: torch.dtype) -> Check:
    """Rotate, write to the cache and attend, of a prompt of 20 tokens beside a decode step at position 40."""
    sequences = [SequenceRows(range(20), 0, [1, 2]), SequenceRows([7], 40, [3, 4, 5])]
    batch = build_batch(sequences, _BLOCK, torch.device("cpu"))
    rows = len(batch.tokens)
    q = normal(rows, _HEADS, _WIDTH, dtype=dtype)
    k, v = normal(rows, _KV_HEADS, _WIDTH, dtype=dtype), normal(rows, _KV_HEADS, _WIDTH, dtype=dtype)
    angles = torch.outer(batch.positions.float(), 10_000.0 ** -(torch.arange(_WIDTH // 2) * 2 / _WIDTH))
    cos, sin = angles.cos(), angles.sin()
    rotation = tuple(torch.cat(halves, -1)[:, None].to(dtype) for halves in ((cos, cos), (-sin, sin)))
    shape = (6, _BLOCK, _KV_HEADS, _WIDTH)
    past_k, past_v = normal(*shape), normal(*shape)

    def compute(kernels: ReferenceOps) -> Tensor:
        kv = _layer(past_k, past_v, cache)
        turned = kernels.rope_write(q.clone(), k.clone(), v, (rotation[0], rotation[1]), False, kv, batch.slots)
        return kernels.paged_attention(turned, kv, batch, _WIDTH**-0.5)

    return f"attention {str(dtype)[6:]}, cache {str(cache)[6:]}", compute


def _layer(k: Tensor, v: Tensor, dtype: torch.dtype) -> LayerKv:
    if dtype != torch.int8:
        return LayerKv(k.to(dtype), v.to(dtype))
    scale = torch.full(k.shape[:3], 1 / 32, dtype=SCALE_TYPE)
    codes = [(part * 32).round().clamp(-127, 127).to(torch.int8) for part in (k, v)]
    return LayerKv(codes[0], codes[1], scale, scale.clone())
