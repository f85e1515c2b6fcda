"""Bytes of weights, and what the layers cache, before any layout splits them.

A sequence's cache has three kinds of bytes: keys and values (or latents), the keys of sparse-attention indexers,
and the constant state of linear layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from shoal.specs.model import AttentionSpec, ModelSpec, QuantizationSpec
from shoal.specs.quantization import DTYPE_BYTES, EMBEDDING_METHODS, is_excluded, quantization, stored_bytes
from shoal.specs.tensors import PartSizes, TensorGroup, mtp_groups, part_sizes, tensor_groups

_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A tensor group as it lies in memory: how it is stored, and the bytes of one of its tensors."""

    group: TensorGroup
    method: str
    """A dtype, or a quantization method."""
    tensor_bytes: int

    def total(self) -> int:
        return self.tensor_bytes * self.group.tensors

    def active_total(self) -> int:
        """Bytes that one token reads, experts not chosen left out."""
        return self.tensor_bytes * self.group.active * (len(self.group.layers) or 1)


def weight_bytes(spec: ModelSpec, method: QuantizationSpec | str | None = None) -> PartSizes:
    """Bytes of the weights by part.

    Args:
        method: a quantization, its name, or a dtype's; None: as the checkpoint itself is stored.

    Raises:
        SpecError: a name that is neither a dtype nor a known method.
    """
    return _weight_bytes(spec, _resolved(spec, method))


def stored_groups(
    spec: ModelSpec, method: QuantizationSpec | str | None = None, mtp: bool = False
) -> tuple[StoredGroup, ...]:
    """Every tensor group with its bytes; one that is converted in some layers only is split in two. Cached.

    `mtp`: those of the multi-token-prediction layers instead.
    """
    return _stored_groups(spec, _resolved(spec, method), mtp)


@dataclass(frozen=True, slots=True)
class KvLayers:
    """The cache of layers that are alike."""

    layers: tuple[int, ...]
    kind: str
    """`full`, `window`, `chunk`, `latent`, `compressed` or `state`."""
    elements: int
    """Key and value elements a token and layer (a latent's, where keys and values are one)."""
    bound: int | None = None
    """At most this many tokens are kept; None: all."""
    kv_heads: int | None = None
    """What tensor parallelism can split; None: a latent, which every rank holds whole."""
    ratio: int = 0
    """`compressed`: one further entry of `elements` for every `ratio` tokens."""
    indexer_elements: int = 0
    """Elements of the indexer's key: one a token, or one a compressed entry."""
    state_bytes: int = 0
    """Constant bytes a sequence and layer."""


@lru_cache(maxsize=1024)
def kv_layers(spec: ModelSpec) -> tuple[KvLayers, ...]:
    """What the layers cache, alike ones together. Cached."""
    found: dict[KvLayers, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        found.setdefault(_kv_of(layer.attention, DTYPE_BYTES[spec.dtype]), []).append(index)
    return tuple(replace(kind, layers=tuple(indices)) for kind, indices in found.items())


def _kv_of(attention: AttentionSpec, dtype_bytes: int) -> KvLayers:
    if attention.linear is not None:
        state = attention.linear
        constant = state.state_elements * _STATE_BYTES + state.conv_elements * dtype_bytes
        return KvLayers((), "state", 0, kv_heads=attention.kv_heads, state_bytes=constant)
    index = attention.indexer.dim if attention.indexer is not None else 0
    if attention.mla is not None:
        return KvLayers(
            (), "latent", attention.mla.kv_lora_rank + attention.mla.qk_rope_dim, indexer_elements=index
        )
    if attention.compression is not None:
        ratio = attention.compression.ratio
        kind = "compressed" if ratio else "window"
        return KvLayers((), kind, attention.head_dim, attention.window, ratio=ratio, indexer_elements=index)
    elements = attention.kv_heads * (attention.head_dim + attention.v_head_dim)
    bound = attention.window or attention.chunk
    kind = "window" if attention.window else "chunk" if attention.chunk else "full"
    return KvLayers((), kind, elements, bound, attention.kv_heads, indexer_elements=index)


def _resolved(spec: ModelSpec, method: QuantizationSpec | str | None) -> QuantizationSpec:
    if method is None:
        return spec.quantization or quantization(spec.dtype)
    return quantization(method) if isinstance(method, str) else method


@lru_cache(maxsize=4096)
def _weight_bytes(spec: ModelSpec, method: QuantizationSpec) -> PartSizes:
    return part_sizes((stored.group.part, stored.total()) for stored in _stored_groups(spec, method, False))


@lru_cache(maxsize=4096)
def _stored_groups(spec: ModelSpec, method: QuantizationSpec, mtp: bool) -> tuple[StoredGroup, ...]:
    groups = mtp_groups(spec) if mtp else tensor_groups(spec)
    return tuple(stored for group in groups for stored in _stored(spec, group, method))


def _stored(spec: ModelSpec, group: TensorGroup, method: QuantizationSpec) -> Iterator[StoredGroup]:
    plain = method.method if method.method in DTYPE_BYTES else spec.dtype
    everything = method.method == "gguf"
    if method.method in EMBEDDING_METHODS and group.part in ("embedding", "lm_head"):
        own = quantization(EMBEDDING_METHODS[method.method])
        yield StoredGroup(group, own.method, stored_bytes(group.shape, own))
        return
    eligible = method.method not in DTYPE_BYTES and (group.quantizable or (everything and len(group.shape) > 1))
    if not eligible or group.dtype is not None:
        dtype = group.dtype or plain
        yield StoredGroup(group, dtype, group.elements * DTYPE_BYTES[dtype])
        return
    kept, converted = _split(group, method)
    if kept is not None:
        yield StoredGroup(kept, plain, kept.elements * DTYPE_BYTES[plain])
    if converted is not None:
        own = method
        if method.experts_method is not None and group.part == "routed_experts":
            own = quantization(method.experts_method)
        yield StoredGroup(converted, own.method, stored_bytes(group.shape, own))


def _split(group: TensorGroup, method: QuantizationSpec) -> tuple[TensorGroup | None, TensorGroup | None]:
    """The layers of a group that are among the exceptions, and the others."""
    module = group.name.removesuffix(".weight").replace("{expert}", "0")
    if not method.excluded:
        return None, group
    if not group.layers:
        return (group, None) if is_excluded(module, method) else (None, group)
    kept = tuple(index for index in group.layers if is_excluded(module.replace("{layer}", str(index)), method))
    if not kept:
        return None, group
    if len(kept) == len(group.layers):
        return group, None
    others = tuple(index for index in group.layers if index not in set(kept))
    return replace(group, layers=kept), replace(group, layers=others)
