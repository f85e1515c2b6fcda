"""What an implementation of the ops provides, and which one this process uses."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.errors import InvalidOption
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import cpu, reference, reference_attention, reference_experts, reference_quantized
from shoal.engine.ops.native import NativeOps
from shoal.engine.ops.native_library import backend
from shoal.engine.ops.native_quantized import QuantizedOps
from shoal.engine.ops.native_stack import NativeExperts, NativeStack
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.ops.reference_quantized import Gate
from shoal.engine.ops.stack import ExpertsFfn, Stack, StackLayer, runs_experts, runs_stack
from shoal.engine.parallel.sums import RankSums


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        kv: LayerKv,
        batch: Batch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor: ...


class PagedAttentionLse(Protocol):
    def __call__(
        self,
        q: Tensor,
        kv: LayerKv,
        batch: Batch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...


class Rope(Protocol):
    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor: ...


class GeluMul(Protocol):
    def __call__(self, gate_up: Tensor, approximate: str = "tanh") -> Tensor: ...


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...


class QuantizedLinear(Protocol):
    def __call__(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, gate: Gate | None = None
    ) -> Tensor: ...


class QuantizedExperts(Protocol):
    def __call__(
        self,
        x: Tensor,
        counts: Sequence[int],
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        gate: Gate | None = None,
    ) -> Tensor: ...


class RopeWrite(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        interleaved: bool,
        kv: LayerKv,
        slots: Tensor,
    ) -> Tensor: ...


class GroupedLinear(Protocol):
    def __call__(self, x: Tensor, counts: Sequence[int], weight: Tensor, bias: Tensor | None = None) -> Tensor: ...


class MakeStack(Protocol):
    def __call__(
        self,
        layers: Sequence[StackLayer],
        caches: Sequence[LayerKv],
        norm: Tensor | None,
        eps: float,
        dtype: torch.dtype,
        ropes: int,
        sums: RankSums | None = None,
    ) -> Stack | None:
        """The layers as one call, with `norm` after the last; None where they can't be.

        `sums`: they are one rank's share, and these add it up with the others'.
        """
        ...


class MakeExperts(Protocol):
    def __call__(self, ffn: ExpertsFfn, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        """Experts and the choice among them as one call, x [T, H] -> [T, H]; None where they can't be."""
        ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every op; what each computes is said in `reference`.

    An implementation with kernels for some ops only is `dataclasses.replace(REFERENCE, ...)`.
    """

    name: str
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rope: Rope
    silu_mul: Callable[[Tensor], Tensor]
    gelu_mul: GeluMul
    linear: Linear
    write_kv: Callable[[LayerKv, Tensor, Tensor, Tensor], None]
    paged_attention: PagedAttention
    paged_attention_lse: PagedAttentionLse
    grouped_linear: GroupedLinear = reference_experts.grouped_linear
    swiglu_oai: Callable[[Tensor, float, float], Tensor] = reference_experts.swiglu_oai
    quantized_linear: QuantizedLinear = reference_quantized.quantized_linear
    quantized_experts: QuantizedExperts = reference_quantized.quantized_experts
    quantized_rows: Callable[[QuantizedWeight, Tensor, torch.dtype], Tensor] = reference_quantized.quantized_rows
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = reference.add_rms_norm
    rope_write: RopeWrite = reference.rope_write
    stack: MakeStack | None = None
    """None: layers run op by op."""
    experts: MakeExperts | None = None
    """None: experts run op by op."""


REFERENCE = Kernels(
    name="reference",
    rms_norm=reference.rms_norm,
    rope=reference.rope,
    silu_mul=reference.silu_mul,
    gelu_mul=reference.gelu_mul,
    linear=reference.linear,
    write_kv=reference.write_kv,
    paged_attention=reference_attention.paged_attention,
    paged_attention_lse=reference_attention.paged_attention_lse,
)


def _native(kind: str | None = None) -> Kernels | None:
    """On the compiled kernels, for the best processor kind or the one named; None where they don't run."""
    found = backend()
    if found.library is None or (kind is not None and kind not in found.kinds):
        return None
    kind = kind or found.kinds[0]
    ops = NativeOps(found.library, kind)
    quantized = QuantizedOps(found.library, kind)
    return replace(
        REFERENCE,
        name=f"native-{kind}",
        rms_norm=ops.rms_norm,
        add_rms_norm=ops.add_rms_norm,
        silu_mul=ops.silu_mul,
        gelu_mul=ops.gelu_mul,
        swiglu_oai=ops.swiglu_oai,
        linear=ops.linear,
        quantized_linear=quantized.quantized_linear,
        quantized_experts=quantized.quantized_experts,
        quantized_rows=quantized.quantized_rows,
        rope_write=ops.rope_write,
        paged_attention=ops.paged_attention,
        paged_attention_lse=ops.paged_attention_lse,
        grouped_linear=ops.grouped_linear,
        stack=partial(_native_stack, found.library, kind),
        experts=partial(_native_experts, found.library, kind),
    )


def _native_stack(
    library: ctypes.CDLL,
    kind: str,
    layers: Sequence[StackLayer],
    caches: Sequence[LayerKv],
    norm: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    ropes: int,
    sums: RankSums | None = None,
) -> Stack | None:
    if not runs_stack(layers, caches, norm, dtype, ropes):
        return None
    return NativeStack(library, kind, layers, caches, norm, eps, sums)


def _native_experts(
    library: ctypes.CDLL, kind: str, ffn: ExpertsFfn, dtype: torch.dtype
) -> Callable[[Tensor], Tensor] | None:
    return NativeExperts(library, kind, ffn) if runs_experts(ffn, dtype) else None


# Best first. An entry gives None where it can't run: not built, or not for this processor.
_CANDIDATES: Mapping[str, Callable[[], Kernels | None]] = {
    "native": _native,
    "native-avx512": lambda: _native("avx512"),
    "native-avx2": lambda: _native("avx2"),
    "native-portable": lambda: _native("portable"),
    "cpu": lambda: replace(REFERENCE, name="cpu", linear=cpu.linear),
    "reference": lambda: REFERENCE,
}


def select_kernels(name: str | None = None) -> Kernels:
    """The implementation called `name`, or the best that runs here. Raises InvalidOption for one that doesn't."""
    if name is None:
        return next(kernels for make in _CANDIDATES.values() if (kernels := make()) is not None)
    make = _CANDIDATES.get(name)
    kernels = make() if make else None
    if kernels is None:
        raise InvalidOption("SHOAL_KERNELS", name, "one that runs here, of " + ", ".join(_CANDIDATES))
    return kernels
