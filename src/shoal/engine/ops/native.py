"""The ops on the compiled kernels, and what falls back to plain torch: other devices, other dtypes, odd strides."""

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import reference_experts
from shoal.engine.ops.fused import ExpertsFfn, FusedLayers, FusedStage
from shoal.engine.ops.native_fused import NativeExperts, NativeFusedLayers, can_fuse, can_fuse_experts
from shoal.engine.ops.native_library import NativeLibrary
from shoal.engine.ops.native_pack import Packer, address
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.ops.reference_ops import CpuOps
from shoal.engine.ops.reference_quantized import Gate


class NativeOps(CpuOps):
    """The ops on the kernels of one instruction set."""

    def __init__(self, library: NativeLibrary, isa: str) -> None:
        self.name = f"native-{isa}"
        self._library, self._isa = library, isa
        self._kernels, self._pack = library.kernels(isa), Packer(library)
        self._structs = library.pack
        self._dtypes, self._cache_dtypes = self._pack.dtypes, self._pack.cache_dtypes
        gates: tuple[Gate, ...] = ("silu", "gelu_tanh")
        codes = library.constants
        self._prologues: dict[Gate | None, int] = {gate: codes[f"{gate}_mul".upper()] for gate in gates}
        self._prologues[None] = codes["AS_IS"]
        self._no_norm = self._pack.described("Norm", None)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = self._dtypes.get(x.dtype)
        if (
            dtype is None
            or not x.is_cpu
            or x.dim() != 2
            or x.stride(1) != 1
            or weight.dtype != x.dtype
            or not weight.is_contiguous()
            or (bias is not None and bias.dtype != x.dtype)
        ):
            return super().linear(x, weight, bias)
        rows, inputs = x.shape
        outputs = weight.shape[0]
        out = x.new_empty(rows, outputs)
        self._kernels.linear(
            self._structs.Linear(
                x=x.data_ptr(),
                y=out.data_ptr(),
                weight=self._pack.dense(weight, bias, inputs, outputs),
                rows=rows,
                x_stride=x.stride(0),
                y_stride=outputs,
                dtype=dtype,
            )
        )
        return out

    def quantized_linear(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, gate: Gate | None = None
    ) -> Tensor:
        dtype = self._takes(x, bias)
        if dtype is None:
            return super().quantized_linear(x, weight, bias, gate)
        out = x.new_empty(x.shape[0], weight.outputs)
        self._kernels.quantized_linear(self._product(x, weight, bias, gate, out, dtype))
        return out

    def quantized_experts(
        self,
        x: Tensor,
        counts: Sequence[int],
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        gate: Gate | None = None,
    ) -> Tensor:
        dtype = self._takes(x, bias)
        if dtype is None or sum(counts) != len(x) or len(counts) != weight.slots:
            return super().quantized_experts(x, counts, weight, bias, gate)
        out = x.new_empty(x.shape[0], weight.outputs)
        numbers = (ctypes.c_int64 * len(counts))(*counts)
        self._kernels.quantized_experts(
            self._structs.QuantizedExperts(
                linear=self._product(x, weight, bias, gate, out, dtype),
                counts=ctypes.addressof(numbers),
                experts=len(counts),
                codes_bytes=weight.codes.stride(0) * weight.codes.element_size(),
                scales_bytes=weight.scales.stride(0) * weight.scales.element_size(),
            )
        )
        return out

    def _takes(self, x: Tensor, bias: Tensor | None) -> int | None:
        """The code of their dtype, if kernels for quantized weights take them."""
        if not x.is_cpu or x.dim() != 2 or x.stride(1) != 1:
            return None
        if bias is not None and (bias.dtype != x.dtype or not bias.is_contiguous()):
            return None
        return self._dtypes.get(x.dtype)

    def _product(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, gate: Gate | None, out: Tensor, dtype: int
    ) -> bytes:
        return self._structs.QuantizedLinear(
            x=x.data_ptr(),
            y=out.data_ptr(),
            weight=self._pack.quantized(weight, bias),
            norm=self._no_norm,
            rows=x.shape[0],
            x_stride=x.stride(0),
            y_stride=weight.outputs,
            prologue=self._prologues[gate],
            dtype=dtype,
        )

    def quantized_rows(self, weight: QuantizedWeight, rows: Tensor, dtype: torch.dtype) -> Tensor:
        code = self._dtypes.get(dtype)
        if weight.scheme != "int8" or code is None or rows.dtype != torch.int64 or not rows.is_contiguous():
            return super().quantized_rows(weight, rows, dtype)
        out = torch.empty(len(rows), weight.inputs, dtype=dtype)
        self._kernels.quantized_rows(
            self._structs.QuantizedRows(
                codes=weight.codes.data_ptr(),
                scales=weight.scales.data_ptr(),
                rows=rows.data_ptr(),
                out=out.data_ptr(),
                count=len(rows),
                inputs=weight.inputs,
                dtype=code,
            )
        )
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        out = self._normed(rows if rows.stride(1) == 1 else rows.contiguous(), None, weight, eps)
        if out is None:
            return super().rms_norm(x, weight, eps)
        return out if x.dim() == 2 else out.view(x.shape)

    def add_rms_norm(self, x: Tensor, add: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        fits = x.dtype == add.dtype and x.is_contiguous() and add.is_contiguous()
        out = self._normed(x, add, weight, eps) if fits else None
        return super().add_rms_norm(x, add, weight, eps) if out is None else (x, out)

    def _normed(self, x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> Tensor | None:
        dtype, weight_dtype = self._dtypes.get(x.dtype), self._dtypes.get(weight.dtype)
        if dtype is None or weight_dtype is None or not x.is_cpu:
            return None
        rows, width = x.shape
        out = torch.empty_like(x)
        self._kernels.rms_norm(
            self._structs.RmsNorm(
                x=x.data_ptr(),
                add=0 if add is None else add.data_ptr(),
                weight=weight.data_ptr(),
                out=out.data_ptr(),
                rows=rows,
                width=width,
                x_stride=x.stride(0),
                add_stride=width,
                out_stride=width,
                eps=eps,
                dtype=dtype,
                weight_dtype=weight_dtype,
            )
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = self._gated_product(gate_up, "SILU")
        return super().silu_mul(gate_up) if out is None else out

    def gelu_mul(self, gate_up: Tensor, approximate: str = "tanh") -> Tensor:
        out = self._gated_product(gate_up, "GELU_TANH") if approximate == "tanh" else None
        return super().gelu_mul(gate_up, approximate) if out is None else out

    def swiglu_oai(self, gate_up: Tensor, limit: float, alpha: float) -> Tensor:
        out = self._gated_product(gate_up, "SWIGLU_OAI", limit, alpha)
        return super().swiglu_oai(gate_up, limit, alpha) if out is None else out

    def _gated_product(self, gate_up: Tensor, gate: str, limit: float = 0.0, alpha: float = 0.0) -> Tensor | None:
        dtype = self._dtypes.get(gate_up.dtype)
        if dtype is None or not gate_up.is_cpu or gate_up.dim() != 2 or gate_up.stride(1) != 1:
            return None
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.gated_product(
            self._structs.GatedProduct(
                gate_up=gate_up.data_ptr(),
                out=out.data_ptr(),
                rows=rows,
                width=width,
                stride=gate_up.stride(0),
                gate=self._library.constants[gate],
                dtype=dtype,
                limit=limit,
                alpha=alpha,
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
        dtype = self._dtypes.get(q.dtype)
        cos, sin = rotation if rotation is not None else (None, None)
        if (
            dtype is None
            or not q.is_cpu
            or not k.dtype == v.dtype == q.dtype
            or not (kv.k.dtype == kv.v.dtype == q.dtype or self._pack.takes_eight_bit(kv))
            or not (_heads_together(q) and _heads_together(k) and _heads_together(v))
            or not (kv.k.is_contiguous() and kv.v.is_contiguous())
            or (cos is not None and cos.dtype != q.dtype)
        ):
            return super().rope_write(q, k, v, rotation, interleaved, kv, slots)
        self._kernels.rope_write(
            self._structs.RopeWrite(
                q=q.data_ptr(),
                k=k.data_ptr(),
                v=v.data_ptr(),
                cos=address(cos),
                sin=address(sin),
                slots=slots.data_ptr(),
                kv=self._pack.paged_kv(kv),
                rows=q.shape[0],
                q_stride=q.stride(0),
                k_stride=k.stride(0),
                v_stride=v.stride(0),
                heads=q.shape[1],
                dim=0 if cos is None else cos.shape[-1],
                interleaved=interleaved,
                dtype=dtype,
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
        lse: Tensor | None = None,
    ) -> Tensor:
        dtype = self._dtypes.get(q.dtype)
        k, v = kv.k, kv.v
        if (
            dtype is None
            or k.dtype not in self._cache_dtypes
            or not q.is_cpu
            or v.dtype != k.dtype
            or (k.dtype == torch.int8 and not self._pack.takes_eight_bit(kv))
            or not _heads_together(q)
            or not (_slots_even(k) and _slots_even(v))
        ):
            return super().paged_attention(q, kv, batch, scale, window, softcap, sinks, lse)
        rows, heads, _ = q.shape
        out = q.new_empty(rows, heads, v.shape[3])
        if sinks is not None and sinks.dtype != torch.float32:
            sinks = sinks.float()
        self._kernels.attention(
            self._structs.Attention(
                q=q.data_ptr(),
                out=out.data_ptr(),
                lse=address(lse),
                sinks=address(sinks),
                kv=self._pack.paged_kv(kv),
                sequences=self._pack.sequences(batch),
                q_stride=q.stride(0),
                heads=heads,
                window=window or 0,
                key_stride=batch.key_stride,
                key_offset=batch.key_offset,
                scale=scale,
                softcap=softcap or 0.0,
                dtype=dtype,
            )
        )
        return out

    def grouped_linear(
        self,
        x: Tensor,
        counts: Sequence[int],
        weight: Tensor,
        bias: Tensor | None = None,
        linear: reference_experts.Linear | None = None,
    ) -> Tensor:
        return super().grouped_linear(x, counts, weight, bias, linear or self.linear)

    def fuse_layers(self, stage: FusedStage) -> FusedLayers | None:
        return NativeFusedLayers(self._library, self._isa, stage) if can_fuse(self._library, stage) else None

    def fuse_experts(self, ffn: ExpertsFfn, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        return NativeExperts(self._library, self._isa, ffn) if can_fuse_experts(self._library, ffn, dtype) else None


def _heads_together(x: Tensor) -> bool:
    """Whether the heads of a row [T, heads, D] lie one after another."""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


def _slots_even(x: Tensor) -> bool:
    """Whether the tokens of all blocks [N, B, K, D] are equally far apart."""
    return x.stride(3) == 1 and x.stride(0) == x.shape[1] * x.stride(1)
