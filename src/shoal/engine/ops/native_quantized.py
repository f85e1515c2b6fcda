"""Products with quantized weights on the compiled kernels."""

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.engine.ops import reference_quantized
from shoal.engine.ops.native_library import KernelError, Pool, kind_index
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.ops.reference_quantized import Gate

# As csrc/kernels/quantized.h has them.
_LINEAR = struct.Struct("7P5qf4i4x")
_EXPERTS = struct.Struct("P3q")
_ROWS = struct.Struct("4P2qi4x")
_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_SCHEMES = {"int8": 0, "int4": 1}
_PROLOGUES: dict[Gate | None, int] = {None: 0, "silu": 1, "gelu_tanh": 2}


class QuantizedOps:
    """Of one processor kind; every method computes what its namesake in `reference_quantized` does."""

    def __init__(self, library: ctypes.CDLL, kind: str) -> None:
        self._kind, self._pool = kind_index(library, kind), Pool(library)
        self._linear = library.shoal_quantized_linear
        self._experts = library.shoal_quantized_experts
        for function in (self._linear, self._experts):
            function.argtypes = (ctypes.c_int, ctypes.c_char_p)
            function.restype = ctypes.c_int
        self._rows = library.shoal_quantized_rows
        self._rows.argtypes = (ctypes.c_char_p,)
        self._rows.restype = None
        self._library = library

    def peak(self, steps: int) -> int:
        """Multiply bytes in registers, `steps` rounds on every thread; returns how many products that was."""
        function = self._library.shoal_quantized_peak
        function.argtypes = (ctypes.c_int, ctypes.c_int64)
        function.restype = ctypes.c_int64
        self._pool.follow()
        return int(function(self._kind, steps))

    def quantized_linear(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, gate: Gate | None = None
    ) -> Tensor:
        if not _fits(x, bias):
            return reference_quantized.quantized_linear(x, weight, bias, gate)
        out = x.new_empty(x.shape[0], weight.outputs)
        self._pool.follow()
        if self._linear(self._kind, _pack(x, weight, bias, gate, out)):
            raise KernelError("quantized_linear: cannot allocate scratch memory")
        return out

    def quantized_rows(self, weight: QuantizedWeight, rows: Tensor, dtype: torch.dtype) -> Tensor:
        if weight.scheme != "int8" or dtype not in _TYPES or rows.dtype != torch.int64 or not rows.is_contiguous():
            return reference_quantized.quantized_rows(weight, rows, dtype)
        out = torch.empty(len(rows), weight.inputs, dtype=dtype)
        places = (weight.codes.data_ptr(), weight.scales.data_ptr(), rows.data_ptr(), out.data_ptr())
        self._rows(_ROWS.pack(*places, len(rows), weight.inputs, _TYPES[dtype]))
        return out

    def quantized_experts(
        self,
        x: Tensor,
        counts: Sequence[int],
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        gate: Gate | None = None,
    ) -> Tensor:
        if not _fits(x, bias) or sum(counts) != len(x) or len(counts) != weight.slots:
            return reference_quantized.quantized_experts(x, counts, weight, bias, gate)
        out = x.new_empty(x.shape[0], weight.outputs)
        numbers = (ctypes.c_int64 * len(counts))(*counts)
        stack = _EXPERTS.pack(
            ctypes.addressof(numbers),
            len(counts),
            weight.codes.stride(0) * weight.codes.element_size(),
            weight.scales.stride(0) * weight.scales.element_size(),
        )
        self._pool.follow()
        if self._experts(self._kind, _pack(x, weight, bias, gate, out) + stack):
            raise KernelError("quantized_experts: cannot allocate scratch memory")
        return out


def _fits(x: Tensor, bias: Tensor | None) -> bool:
    return (
        x.dtype in _TYPES
        and x.is_cpu
        and x.dim() == 2
        and x.stride(1) == 1
        and (bias is None or (bias.dtype == x.dtype and bias.is_contiguous()))
    )


def _pack(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, gate: Gate | None, out: Tensor) -> bytes:
    return _LINEAR.pack(
        x.data_ptr(),
        0,
        0,
        weight.codes.data_ptr(),
        weight.scales.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        weight.inputs,
        weight.outputs,
        x.stride(0),
        weight.outputs,
        0.0,
        _SCHEMES[weight.scheme],
        _PROLOGUES[gate],
        _TYPES[x.dtype],
        0,
    )
