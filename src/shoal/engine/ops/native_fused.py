"""Layers, and experts, in one call of the compiled kernels: which can be, how they are packed, and the calls."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.fused import ExpertsFfn, FusedLayer, FusedStage, GatedFfn, Product
from shoal.engine.ops.native_library import NativeLibrary
from shoal.engine.ops.native_pack import DTYPES, Packer
from shoal.engine.ops.quantized import QuantizedWeight


class NativeFusedLayers:
    """The layers of a stage. Not thread-safe: it works in memory of its own."""

    def __init__(self, library: NativeLibrary, isa: str, stage: FusedStage) -> None:
        """`can_fuse` is true of `stage`."""
        self._kernels, self._pack = library.kernels(isa), Packer(library)
        layers, self._count, self._sums = stage.layers, len(stage.layers), stage.sums
        self._ropes = 1 + max(-1 if layer.rope is None else layer.rope for layer in layers)
        self._rotations = (ctypes.c_void_p * (2 * self._ropes))()
        ffns = [layer.ffn for layer in layers]
        experts = [_Buffer(_experts(self._pack, ffn)) if isinstance(ffn, ExpertsFfn) else None for ffn in ffns]
        sinks = [None if layer.sinks is None else layer.sinks.float() for layer in layers]
        parts = zip(layers, stage.caches, sinks, experts, strict=True)
        packed = _Buffer(b"".join(_layer(self._pack, *of) for of in parts))
        self._stage = self._pack.described(
            "FusedLayers",
            stage,
            layers=packed.address,
            rotations=ctypes.addressof(self._rotations),
            sums=self._pack.described("RankSums", stage.sums),
            count=self._count,
            hidden=layers[0].attention_norm.shape[0],
            dtype=self._pack.dtypes[stage.dtype],
            norm_dtype=self._pack.dtypes[layers[0].attention_norm.dtype],
        )
        # What addresses point to.
        self._kept = (stage, sinks, experts, packed)
        self._work = torch.empty(0, dtype=torch.uint8)
        self._rows = 0

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        for index in range(self._ropes):
            cos, sin = rotations[index]
            self._rotations[2 * index], self._rotations[2 * index + 1] = cos.data_ptr(), sin.data_ptr()
        rows = x.shape[0]
        if rows > self._rows:
            planned = self._pack.described("FusedStep", None, stage=self._stage, rows=rows)
            size = self._kernels.fused_layers_bytes(planned)
            self._work, self._rows = torch.empty(size, dtype=torch.uint8), rows
        failed = self._kernels.fused_layers(
            self._pack.structs.FusedStep(
                stage=self._stage,
                x=x.data_ptr(),
                out=out.data_ptr(),
                work=self._work.data_ptr(),
                slots=batch.slots.data_ptr(),
                sequences=self._pack.sequences(batch),
                rows=rows,
            )
        )
        if self._sums is not None and rows:
            self._sums.done(2 * self._count, x.nbytes, failed - 2 if failed else -1)
        return out


class NativeExperts:
    """Experts and the choice among them, x [T, H] -> [T, H]."""

    def __init__(self, library: NativeLibrary, isa: str, ffn: ExpertsFfn) -> None:
        """`can_fuse_experts` is true of `ffn`."""
        self._kernels, self._pack = library.kernels(isa), Packer(library)
        self._kept, self._ffn = ffn, _Buffer(_experts(self._pack, ffn))

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, hidden = x.shape
        self._kernels.experts(
            self._pack.structs.Experts(
                ffn=self._ffn.address,
                x=x.data_ptr(),
                out=out.data_ptr(),
                rows=rows,
                hidden=hidden,
                dtype=self._pack.dtypes[x.dtype],
            )
        )
        return out


class _Buffer:
    """Bytes that stay where they are."""

    def __init__(self, data: bytes) -> None:
        self._memory = ctypes.create_string_buffer(data, len(data))
        self.address = ctypes.addressof(self._memory)


def _layer(pack: Packer, layer: FusedLayer, kv: LayerKv, sinks: Tensor | None, experts: _Buffer | None) -> bytes:
    return pack.described(
        "FusedLayer",
        layer,
        sinks=sinks,
        kv=pack.paged_kv(kv),
        qkv=_matrix(pack, layer.qkv),
        out=_matrix(pack, layer.out),
        ffn=_gated(pack, layer.ffn) if isinstance(layer.ffn, GatedFfn) else None,
        experts=None if experts is None else experts.address,
        rope=-1 if layer.rope is None else layer.rope,
    )


def _experts(pack: Packer, ffn: ExpertsFfn) -> bytes:
    gate_up_bytes, gate_up_scales_bytes = _apart(ffn.routed.gate_up)
    down_bytes, down_scales_bytes = _apart(ffn.routed.down)
    weights = {"weight": ffn.router_weight, "bias": ffn.router_bias, "correction": ffn.correction}
    return pack.described(
        "ExpertsFfn",
        ffn,
        router=pack.described("Router", ffn.router, **weights),
        routed=_gated(pack, ffn.routed),
        gate_up_bytes=gate_up_bytes,
        gate_up_scales_bytes=gate_up_scales_bytes,
        down_bytes=down_bytes,
        down_scales_bytes=down_scales_bytes,
        shared=None if ffn.shared is None else _gated(pack, ffn.shared),
        shared_gate=None if ffn.shared_gate is None else _matrix(pack, ffn.shared_gate),
    )


def _apart(product: Product) -> tuple[int, int]:
    """Bytes from one expert's weights to the next's, and from its scales to the next's."""
    weight = product.weight
    if isinstance(weight, QuantizedWeight):
        return weight.codes[0].nbytes, weight.scales[0].nbytes
    return weight[0].nbytes, 0


def _gated(pack: Packer, ffn: GatedFfn) -> bytes:
    return pack.described("GatedFfn", ffn, gate_up=_matrix(pack, ffn.gate_up), down=_matrix(pack, ffn.down))


def _matrix(pack: Packer, product: Product) -> bytes:
    return pack.matrix(product.weight, product.bias)


def can_fuse(library: NativeLibrary, stage: FusedStage) -> bool:
    """Whether the kernels can run these layers in one call."""
    layers, dtype = stage.layers, stage.dtype
    norms = [part for layer in layers for part in _norms(layer)]
    norms += [] if stage.norm is None else [stage.norm]
    return (
        bool(layers)
        and dtype in DTYPES
        and len({part.dtype for part in norms}) == 1
        and norms[0].dtype in DTYPES
        and all(_fit((layer.qkv, layer.out, *_products(layer.ffn)), dtype) for layer in layers)
        and all(part.is_contiguous() for kv in stage.caches for part in kv.parts)
        and all(kv.k.dtype in (dtype, torch.int8) for kv in stage.caches)
        and all(_knows(library, layer.ffn) for layer in layers)
    )


def can_fuse_experts(library: NativeLibrary, ffn: ExpertsFfn, dtype: torch.dtype) -> bool:
    """Whether the kernels can run them in one call."""
    return dtype in DTYPES and _fit(_products(ffn), dtype) and _knows(library, ffn)


def _fit(products: Iterable[Product], dtype: torch.dtype) -> bool:
    parts = [part for product in products for part in (product.weight, product.bias) if isinstance(part, Tensor)]
    return all(part.dtype == dtype and part.is_contiguous() and part.is_cpu for part in parts)


def _norms(layer: FusedLayer) -> Iterator[Tensor]:
    names = ("attention_norm", "after_attention_norm", "ffn_norm", "after_ffn_norm", "q_norm", "k_norm")
    yield from (part for name in names if (part := getattr(layer, name)) is not None)


def _products(ffn: GatedFfn | ExpertsFfn) -> Iterator[Product]:
    if isinstance(ffn, GatedFfn):
        yield from (ffn.gate_up, ffn.down)
        return
    yield from _products(ffn.routed)
    if ffn.shared is not None:
        yield from _products(ffn.shared)
    if ffn.shared_gate is not None:
        yield ffn.shared_gate


def _knows(library: NativeLibrary, ffn: GatedFfn | ExpertsFfn) -> bool:
    known = library.constants
    if isinstance(ffn, GatedFfn):
        return ffn.gate.upper() in known
    router, down = ffn.router, ffn.routed.down.weight
    return (
        _knows(library, ffn.routed)
        and (ffn.shared is None or _knows(library, ffn.shared))
        and router.experts <= known["MAX_EXPERTS"]
        and router.scoring.upper() in known
        and (router.groups == 1 or router.group_score == "max" or router.experts >= 2 * router.groups)
        # A rank of many may hold no inner column of an expert.
        and (down.inputs if isinstance(down, QuantizedWeight) else down.shape[-1]) > 0
    )
