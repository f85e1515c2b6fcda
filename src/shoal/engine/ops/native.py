"""The ops on the compiled kernels, and what falls back to plain torch: other devices, other dtypes, odd strides."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import cpu, reference, reference_attention, reference_experts
from shoal.engine.ops.native_library import (
    ATTENTION,
    GATED_PRODUCT,
    LINEAR,
    RMS_NORM,
    ROPE_WRITE,
    KernelError,
    Pool,
    kind_index,
)

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_CACHE_TYPES = {**_TYPES, torch.int8: 2}
_MAX_WIDTH = 1024
"""As in csrc/kernels/kernels.h."""
_SILU, _GELU_TANH, _SWIGLU_OAI = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Call:
    """One entry point of the library, for one processor kind."""

    function: "ctypes._NamedFuncPointer"
    kind: int
    pool: Pool

    def __call__(self, arguments: bytes) -> None:
        self.pool.follow()
        if self.function(self.kind, arguments):
            raise KernelError(f"{self.function.__name__}: cannot allocate scratch memory")


class NativeOps:
    """The ops of one processor kind; every method computes what its namesake in `reference` does."""

    def __init__(self, library: ctypes.CDLL, kind: str) -> None:
        index, pool = kind_index(library, kind), Pool(library)
        self._linear = _Call(library.shoal_linear, index, pool)
        self._rms_norm = _Call(library.shoal_rms_norm, index, pool)
        self._gated = _Call(library.shoal_gated_product, index, pool)
        self._rope_write = _Call(library.shoal_rope_write, index, pool)
        self._attention = _Call(library.shoal_attention, index, pool)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        kind = _TYPES.get(x.dtype)
        if (
            kind is None
            or not x.is_cpu
            or x.dim() != 2
            or x.stride(1) != 1
            or weight.dtype != x.dtype
            or not weight.is_contiguous()
            or (bias is not None and bias.dtype != x.dtype)
        ):
            return cpu.linear(x, weight, bias)
        rows, inputs = x.shape
        outputs = weight.shape[0]
        out = x.new_empty(rows, outputs)
        self._linear(
            LINEAR.pack(
                x.data_ptr(),
                weight.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                out.data_ptr(),
                rows,
                inputs,
                outputs,
                x.stride(0),
                outputs,
                kind,
            )
        )
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kind, weight_kind = _TYPES.get(x.dtype), _TYPES.get(weight.dtype)
        if kind is None or weight_kind is None or not x.is_cpu:
            return reference.rms_norm(x, weight, eps)
        width = x.shape[-1]
        rows = x.reshape(-1, width)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        self._rms_norm(
            RMS_NORM.pack(
                rows.data_ptr(),
                0,
                weight.data_ptr(),
                out.data_ptr(),
                rows.shape[0],
                width,
                rows.stride(0),
                0,
                width,
                eps,
                kind,
                weight_kind,
            )
        )
        return out

    def add_rms_norm(self, x: Tensor, add: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        kind, weight_kind = _TYPES.get(x.dtype), _TYPES.get(weight.dtype)
        if (
            kind is None
            or weight_kind is None
            or not x.is_cpu
            or x.dtype != add.dtype
            or not (x.is_contiguous() and add.is_contiguous())
        ):
            return reference.add_rms_norm(x, add, weight, eps)
        rows, width = x.shape
        out = torch.empty_like(x)
        self._rms_norm(
            RMS_NORM.pack(
                x.data_ptr(),
                add.data_ptr(),
                weight.data_ptr(),
                out.data_ptr(),
                rows,
                width,
                width,
                width,
                width,
                eps,
                kind,
                weight_kind,
            )
        )
        return x, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = self._gated_product(gate_up, _SILU)
        return reference.silu_mul(gate_up) if out is None else out

    def gelu_mul(self, gate_up: Tensor, approximate: str = "tanh") -> Tensor:
        out = self._gated_product(gate_up, _GELU_TANH) if approximate == "tanh" else None
        return reference.gelu_mul(gate_up, approximate) if out is None else out

    def swiglu_oai(self, gate_up: Tensor, limit: float, alpha: float) -> Tensor:
        out = self._gated_product(gate_up, _SWIGLU_OAI, limit, alpha)
        return reference_experts.swiglu_oai(gate_up, limit, alpha) if out is None else out

    def _gated_product(self, gate_up: Tensor, gate: int, limit: float = 0.0, alpha: float = 0.0) -> Tensor | None:
        kind = _TYPES.get(gate_up.dtype)
        if kind is None or not gate_up.is_cpu or gate_up.dim() != 2 or gate_up.stride(1) != 1:
            return None
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._gated(
            GATED_PRODUCT.pack(
                gate_up.data_ptr(), out.data_ptr(), rows, width, gate_up.stride(0), gate, kind, limit, alpha
            )
        )
        return out

    def rope_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        interleaved: bool,
        kv: LayerKv,
        slots: Tensor,
    ) -> Tensor:
        kind = _TYPES.get(q.dtype)
        cos, sin = rotation if rotation is not None else (None, None)
        if (
            kind is None
            or not q.is_cpu
            or any(t.dtype != q.dtype for t in (k, v))
            or not (_eight_bit(kv) or (kv.k.dtype == q.dtype and kv.v.dtype == q.dtype))
            or not all(_heads_together(t) for t in (q, k, v))
            or not (kv.k.is_contiguous() and kv.v.is_contiguous())
            or (cos is not None and cos.dtype != q.dtype)
        ):
            return reference.rope_write(q, k, v, rotation, interleaved, kv, slots)
        rows, heads, width = q.shape
        self._rope_write(
            ROPE_WRITE.pack(
                q.data_ptr(),
                k.data_ptr(),
                v.data_ptr(),
                0 if cos is None else cos.data_ptr(),
                0 if sin is None else sin.data_ptr(),
                kv.k.data_ptr(),
                kv.v.data_ptr(),
                slots.data_ptr(),
                rows,
                q.stride(0),
                k.stride(0),
                v.stride(0),
                heads,
                k.shape[1],
                width,
                v.shape[2],
                0 if cos is None else cos.shape[-1],
                interleaved,
                kind,
                _address(kv.k_scales),
                _address(kv.v_scales),
                _CACHE_TYPES[kv.k.dtype],
            )
        )
        return q

    def paged_attention(
        self,
        q: Tensor,
        kv: LayerKv,
        batch: Batch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = self._attend(q, kv, batch, scale, window, softcap, sinks, None)
        if out is None:
            return reference_attention.paged_attention(q, kv, batch, scale, window, softcap, sinks)
        return out

    def paged_attention_lse(
        self,
        q: Tensor,
        kv: LayerKv,
        batch: Batch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        out = self._attend(q, kv, batch, scale, window, softcap, sinks, lse)
        if out is None:
            return reference_attention.paged_attention_lse(q, kv, batch, scale, window, softcap, sinks)
        return out, lse

    def _attend(
        self,
        q: Tensor,
        kv: LayerKv,
        batch: Batch,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
        lse: Tensor | None,
    ) -> Tensor | None:
        kind, kv_kind = _TYPES.get(q.dtype), _CACHE_TYPES.get(kv.k.dtype)
        k, v = kv.k, kv.v
        if (
            kind is None
            or kv_kind is None
            or not q.is_cpu
            or v.dtype != k.dtype
            or (k.dtype == torch.int8 and not _eight_bit(kv))
            or not _heads_together(q)
            or not (_slots_even(k) and _slots_even(v))
        ):
            return None
        rows, heads, width = q.shape
        out = q.new_empty(rows, heads, v.shape[3])
        if sinks is not None and sinks.dtype != torch.float32:
            sinks = sinks.float()
        self._attention(
            ATTENTION.pack(
                q.data_ptr(),
                out.data_ptr(),
                0 if lse is None else lse.data_ptr(),
                k.data_ptr(),
                v.data_ptr(),
                batch.query_starts.data_ptr(),
                batch.context_lengths.data_ptr(),
                batch.block_tables.data_ptr(),
                0 if sinks is None else sinks.data_ptr(),
                len(batch.lengths),
                batch.block_tables.stride(0),
                q.stride(0),
                k.stride(1),
                k.stride(2),
                v.stride(1),
                v.stride(2),
                heads,
                k.shape[2],
                width,
                v.shape[3],
                k.shape[1],
                window or 0,
                batch.key_stride,
                batch.key_offset,
                scale,
                softcap or 0.0,
                kind,
                kv_kind,
                _address(kv.k_scales),
                _address(kv.v_scales),
            )
        )
        return out

    def grouped_linear(
        self, x: Tensor, counts: Sequence[int], weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return reference_experts.grouped_linear(x, counts, weight, bias, self.linear)


def _eight_bit(kv: LayerKv) -> bool:
    """Whether it is a whole cache in eight bits that the kernels read and write."""
    scales = (kv.k_scales, kv.v_scales)
    return (
        kv.k.dtype == torch.int8
        and all(part is not None and part.is_contiguous() for part in scales)
        and max(kv.k.shape[3], kv.v.shape[3]) <= _MAX_WIDTH
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _heads_together(x: Tensor) -> bool:
    """Whether the heads of a row [T, heads, D] lie one after another."""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


def _slots_even(x: Tensor) -> bool:
    """Whether the tokens of all blocks [N, B, K, D] are equally far apart."""
    return x.stride(3) == 1 and x.stride(0) == x.shape[1] * x.stride(1)
