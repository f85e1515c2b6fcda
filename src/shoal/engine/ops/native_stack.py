"""`Stack` on the compiled kernels: the structs of csrc/kernels/stack.h and feed.h, and the call."""

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.native_library import KernelError, Pool, kind_index
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.ops.stack import GATES, MAX_ROPES, TYPES, ExpertsFfn, GatedFfn, Product, StackLayer
from shoal.engine.parallel.sums import RankSums

_CACHE_TYPES: Final[Mapping[torch.dtype, int]] = MappingProxyType({**TYPES, torch.int8: 2})
_PACKED: Final[Mapping[str, int]] = MappingProxyType({"int8": 1, "int4": 2})


class _Matrix(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "scales", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("packed", "unused")),
    )


class _Gated(ctypes.Structure):
    """Mirrors GatedFfn."""

    _fields_ = (
        *((name, _Matrix) for name in ("gate_up", "down")),
        ("gate", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("limit", "alpha")),
        ("unused", ctypes.c_int32),
    )


class _Router(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "correction")),
        *((name, ctypes.c_int64) for name in ("experts", "top_k", "groups", "top_groups")),
        ("scaling", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("sigmoid", "softmax_after_top_k", "normalize", "best_two", "unused")),
    )


class _Experts(ctypes.Structure):
    """Mirrors ExpertsFfn."""

    _fields_ = (
        ("router", _Router),
        ("first", _Gated),
        *(
            (name, ctypes.c_int64)
            for name in ("gate_up_bytes", "gate_up_scales_bytes", "down_bytes", "down_scales_bytes")
        ),
        ("shared", _Gated),
        ("shared_gate", _Matrix),
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
    """Mirrors StackLayer."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, _Matrix) for name in ("qkv", "out")),
        ("ffn", _Gated),
        ("experts", ctypes.POINTER(_Experts)),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "width", "v_width", "window", "dim")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        *((name, ctypes.c_int32) for name in ("rope", "interleaved")),
    )


class _Step(ctypes.Structure):
    """Mirrors Stack."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *(
            (name, ctypes.c_void_p)
            for name in ("norm", "x", "out", "work", "slots", "starts", "contexts", "tables")
        ),
        ("cos", ctypes.c_void_p * MAX_ROPES),
        ("sin", ctypes.c_void_p * MAX_ROPES),
        *(
            (name, ctypes.c_int64)
            for name in ("count", "rows", "hidden", "sequences", "table_stride", "block_size")
        ),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("type", "norm_type", "kv_type")),
    )


class _Sums(ctypes.Structure):
    """Mirrors Sums."""

    _fields_ = (("all_reduce", ctypes.c_void_p), ("group", ctypes.c_void_p))


class NativeStack:
    """The layers of a stage on the compiled kernels. Not thread-safe: it works in memory of its own."""

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        layers: Sequence[StackLayer],
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
        self._size.argtypes = (ctypes.c_int, ctypes.POINTER(_Step))
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
            norm_type=TYPES[first.attention_norm.dtype],
            kv_type=_CACHE_TYPES[caches[0].k.dtype],
        )
        self._work = torch.empty(0, dtype=torch.uint8)
        self._rows = 0

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        step = self._step
        step.x, step.out, step.rows = x.data_ptr(), out.data_ptr(), x.shape[0]
        step.type = TYPES[x.dtype]
        step.slots, step.starts = batch.slots.data_ptr(), batch.query_starts.data_ptr()
        step.contexts, step.tables = batch.context_lengths.data_ptr(), batch.block_tables.data_ptr()
        step.sequences, step.table_stride = len(batch.lengths), batch.block_tables.stride(0)
        for index, (cos, sin) in enumerate(rotations):
            step.cos[index], step.sin[index] = cos.data_ptr(), sin.data_ptr()
        if x.shape[0] > self._rows:
            self._rows = x.shape[0]
            self._work = torch.empty(self._size(self._kind, step), dtype=torch.uint8)
            step.work = self._work.data_ptr()
        self._pool.follow()
        failed = self._run(self._kind, step, self._native_sums)
        if failed == 1:
            raise KernelError("stack: cannot allocate scratch memory")
        if self._sums is not None and len(x):
            self._sums.done(2 * step.count, x.nbytes, failed - 2 if failed else -1)
        return out


class NativeExperts:
    """Experts and the choice among them on the compiled kernels, x [T, H] -> [T, H]."""

    def __init__(self, library: ctypes.CDLL, kind: str, ffn: ExpertsFfn) -> None:
        """`ffn` passes `runs_experts`."""
        self._run = library.shoal_experts
        self._run.argtypes = (
            ctypes.c_int,
            ctypes.POINTER(_Experts),
            *(ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64),
            ctypes.c_int32,
        )
        self._run.restype = ctypes.c_int
        self._kind, self._pool = kind_index(library, kind), Pool(library)
        self._kept, self._ffn = ffn, _experts(ffn)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        self._pool.follow()
        if self._run(self._kind, self._ffn, x.data_ptr(), out.data_ptr(), *x.shape, TYPES[x.dtype]):
            raise KernelError("experts: cannot allocate scratch memory")
        return out


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer(layer: StackLayer, kv: LayerKv, sinks: Tensor | None) -> _Layer:
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
        ffn=_gated(layer.ffn) if isinstance(layer.ffn, GatedFfn) else _Gated(),
        experts=ctypes.pointer(_experts(layer.ffn)) if isinstance(layer.ffn, ExpertsFfn) else None,
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
    )


def _gated(ffn: GatedFfn) -> _Gated:
    return _Gated(
        gate_up=_matrix(ffn.gate_up),
        down=_matrix(ffn.down),
        gate=GATES[ffn.gate],
        limit=ffn.limit,
        alpha=ffn.alpha,
    )


def _experts(ffn: ExpertsFfn) -> _Experts:
    spec = ffn.router
    gate_up_bytes, gate_up_scales_bytes = _apart(ffn.routed.gate_up)
    down_bytes, down_scales_bytes = _apart(ffn.routed.down)
    return _Experts(
        router=_Router(
            weight=_address(ffn.router_weight),
            bias=_address(ffn.router_bias),
            correction=_address(ffn.correction),
            experts=spec.experts,
            top_k=spec.top_k,
            groups=1 if spec.softmax_after_top_k else spec.groups,
            top_groups=spec.top_groups,
            scaling=spec.scaling,
            sigmoid=spec.scoring == "sigmoid",
            softmax_after_top_k=spec.softmax_after_top_k,
            normalize=spec.normalize,
            best_two=spec.group_score == "top2",
        ),
        first=_gated(ffn.routed),
        gate_up_bytes=gate_up_bytes,
        gate_up_scales_bytes=gate_up_scales_bytes,
        down_bytes=down_bytes,
        down_scales_bytes=down_scales_bytes,
        shared=_Gated() if ffn.shared is None else _gated(ffn.shared),
        shared_gate=_Matrix() if ffn.shared_gate is None else _matrix(ffn.shared_gate),
    )


def _apart(product: Product) -> tuple[int, int]:
    """Bytes from one expert's weights to the next's, and from its scales to the next's."""
    weight = product.weight
    if isinstance(weight, QuantizedWeight):
        return weight.codes[0].nbytes, weight.scales[0].nbytes
    return weight[0].nbytes, 0


def _matrix(product: Product) -> _Matrix:
    """The only matrix, or the first expert's."""
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
    outputs, inputs = weight.shape[-2:]
    return _Matrix(w=weight.data_ptr(), bias=_address(product.bias), inputs=inputs, outputs=outputs, packed=0)
