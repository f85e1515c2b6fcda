"""Dense layers one after another in one call of the compiled kernels: what they are, and how they are run.

Between two kernels called from Python lie tens of microseconds, and a decode step of a small model has hundreds.
Results are the same bits as those of the ops called one by one.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.native_library import KernelError, Pool, kind_index
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.parallel.sums import RankSums

MOST_ROPES = 4
_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_CACHE_TYPES = {**_TYPES, torch.int8: 2}
_PACKED = {"int8": 1, "int4": 2}
GATES = {"silu": 0, "gelu_tanh": 1}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix [out, in] and its bias [out]."""

    weight: Tensor | QuantizedWeight
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A decoder layer of grouped-query attention and a gated feed-forward network: whole, or one rank's share."""

    attention_norm: Tensor
    after_attention_norm: Tensor | None
    ffn_norm: Tensor
    after_ffn_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    heads: int
    kv_heads: int
    width: int
    v_width: int
    window: int | None
    scale: float
    softcap: float | None
    rope: int | None
    """Which of the model's rotations."""
    rope_dim: int
    interleaved: bool
    gate: str


class Stack(Protocol):
    """All layers of a stage."""

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        """x [T, H] after the last layer, normed where there is a last norm. The caller gives x up."""
        ...


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("w", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("packed", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


_POINTERS = (
    "attention_norm",
    "after_attention_norm",
    "ffn_norm",
    "after_ffn_norm",
    "q_norm",
    "k_norm",
    "sinks",
    "k_cache",
    "v_cache",
    "k_scales",
    "v_scales",
)


class _Layer(ctypes.Structure):
    """Mirrors StackLayer in csrc/kernels/stack.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "width", "v_width", "window", "dim")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("rope", "interleaved", "gate")),
    )


class _Step(ctypes.Structure):
    """Mirrors Stack in csrc/kernels/stack.h."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *(
            (name, ctypes.c_void_p)
            for name in ("norm", "x", "out", "work", "slots", "starts", "contexts", "tables")
        ),
        ("cos", ctypes.c_void_p * MOST_ROPES),
        ("sin", ctypes.c_void_p * MOST_ROPES),
        *(
            (name, ctypes.c_int64)
            for name in ("count", "rows", "hidden", "sequences", "table_stride", "block_size")
        ),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("type", "norm_type", "kv_type")),
    )


class _Sums(ctypes.Structure):
    """Mirrors Sums in csrc/kernels/stack.h."""

    _fields_ = (("all_reduce", ctypes.c_void_p), ("group", ctypes.c_void_p))


class NativeStack:
    """The layers of a stage on the compiled kernels. Not thread-safe: it works in memory of its own."""

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        layers: Sequence[DenseLayer],
        caches: Sequence[LayerKv],
        norm: Tensor | None,
        eps: float,
        sums: RankSums | None = None,
    ) -> None:
        """`layers` and `caches` pass `runs_stack`. `sums`: the layers hold this rank's heads and columns only."""
        self._run, self._size = library.shoal_stack, library.shoal_stack_work
        self._run.argtypes = (ctypes.c_int, ctypes.POINTER(_Step), ctypes.POINTER(_Sums))
        self._run.restype = ctypes.c_int
        self._sums = sums
        self._native_sums = None if sums is None else _Sums(sums.all_reduce, sums.group)
        self._size.argtypes = (ctypes.POINTER(_Step),)
        self._size.restype = ctypes.c_longlong
        self._kind, self._pool = kind_index(library, kind), Pool(library)
        # What the struct points to.
        self._kept = (tuple(layers), tuple(caches), norm)
        self._sinks = [None if layer.sinks is None else layer.sinks.float() for layer in layers]
        self._layers = (_Layer * len(layers))(
            *(_layer(*parts) for parts in zip(layers, caches, self._sinks, strict=True))
        )
        first = layers[0]
        self._step = _Step(
            layers=ctypes.addressof(self._layers),
            norm=_address(norm),
            count=len(layers),
            hidden=first.attention_norm.shape[0],
            block_size=caches[0].k.shape[1],
            eps=eps,
            norm_type=_TYPES[first.attention_norm.dtype],
            kv_type=_CACHE_TYPES[caches[0].k.dtype],
        )
        self._work = torch.empty(0, dtype=torch.uint8)
        self._rows = 0

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        step = self._step
        step.x, step.out, step.rows = x.data_ptr(), out.data_ptr(), x.shape[0]
        step.type = _TYPES[x.dtype]
        step.slots, step.starts = batch.slots.data_ptr(), batch.query_starts.data_ptr()
        step.contexts, step.tables = batch.context_lengths.data_ptr(), batch.block_tables.data_ptr()
        step.sequences, step.table_stride = len(batch.lengths), batch.block_tables.stride(0)
        for index, (cos, sin) in enumerate(rotations):
            step.cos[index], step.sin[index] = cos.data_ptr(), sin.data_ptr()
        if x.shape[0] > self._rows:
            self._rows = x.shape[0]
            self._work = torch.empty(self._size(step), dtype=torch.uint8)
            step.work = self._work.data_ptr()
        self._pool.follow()
        failed = self._run(self._kind, step, self._native_sums)
        if failed == 1:
            raise KernelError("stack: out of memory for what it works in")
        if self._sums is not None and len(x):
            self._sums.done(2 * step.count, x.nbytes, failed - 2 if failed else -1)
        return out


def runs_stack(
    layers: Sequence[DenseLayer], caches: Sequence[LayerKv], norm: Tensor | None, dtype: torch.dtype, ropes: int
) -> bool:
    """Whether the compiled kernels can run these layers in one call."""
    norms = [
        part
        for layer in layers
        for part in (
            layer.attention_norm,
            layer.after_attention_norm,
            layer.ffn_norm,
            layer.after_ffn_norm,
            layer.q_norm,
            layer.k_norm,
        )
        if part is not None
    ]
    norms += [] if norm is None else [norm]
    dense = [
        part
        for layer in layers
        for product in (layer.qkv, layer.out, layer.gate_up, layer.down)
        for part in (product.weight, product.bias)
        if isinstance(part, Tensor)
    ]
    cached = [part for kv in caches for part in kv.parts]
    return (
        bool(layers)
        and ropes <= MOST_ROPES
        and dtype in _TYPES
        and len({part.dtype for part in norms}) == 1
        and norms[0].dtype in _TYPES
        and all(part.dtype == dtype and part.is_contiguous() and part.is_cpu for part in dense)
        and all(part.is_contiguous() for part in cached)
        and all(kv.k.dtype in (dtype, torch.int8) for kv in caches)
        and all(layer.gate in GATES for layer in layers)
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer(layer: DenseLayer, kv: LayerKv, sinks: Tensor | None) -> _Layer:
    return _Layer(
        attention_norm=_address(layer.attention_norm),
        after_attention_norm=_address(layer.after_attention_norm),
        ffn_norm=_address(layer.ffn_norm),
        after_ffn_norm=_address(layer.after_ffn_norm),
        q_norm=_address(layer.q_norm),
        k_norm=_address(layer.k_norm),
        sinks=_address(sinks),
        k_cache=_address(kv.k),
        v_cache=_address(kv.v),
        k_scales=_address(kv.k_scales),
        v_scales=_address(kv.v_scales),
        qkv=_matrix(layer.qkv),
        out=_matrix(layer.out),
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        width=layer.width,
        v_width=layer.v_width,
        window=layer.window or 0,
        dim=layer.rope_dim,
        scale=layer.scale,
        softcap=layer.softcap or 0.0,
        rope=-1 if layer.rope is None else layer.rope,
        interleaved=layer.interleaved,
        gate=GATES[layer.gate],
    )


def _matrix(product: Product) -> _Matrix:
    weight = product.weight
    if isinstance(weight, QuantizedWeight):
        return _Matrix(
            w=weight.codes.data_ptr(),
            scales=weight.scales.data_ptr(),
            bias=_address(product.bias),
            inputs=weight.inputs,
            outputs=weight.outputs,
            packed=_PACKED[weight.scheme],
        )
    outputs, inputs = weight.shape
    return _Matrix(w=weight.data_ptr(), bias=_address(product.bias), inputs=inputs, outputs=outputs, packed=0)
