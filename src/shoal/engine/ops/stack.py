"""Layers one after another in one call of the compiled kernels: what such layers are, and which can be run so.

Between two kernels called from Python lie tens of microseconds, and a decode step of a small model has hundreds.
Results are those of the ops called one by one: the same bits, but for the weights of experts, which are a softmax.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.specs.model import RouterSpec

MAX_ROPES: Final = 4
MAX_EXPERTS: Final = 1024
"""As in csrc/kernels/router.h."""
TYPES: Final[Mapping[torch.dtype, int]] = MappingProxyType({torch.float32: 0, torch.bfloat16: 1})
GATES: Final[Mapping[str, int]] = MappingProxyType({"silu": 0, "gelu_tanh": 1, "swiglu_oai": 2})


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix [out, in] and its bias [out]; of experts all of them, [experts, out, in] and [experts, out]."""

    weight: Tensor | QuantizedWeight
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class GatedFfn:
    """down(act(gate) · up): a network of its own, or every one of some experts."""

    gate_up: Product
    down: Product
    gate: str
    limit: float = 0.0
    """This and `alpha` of `swiglu_oai` only."""
    alpha: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertsFfn:
    """Routed experts, all of them here, and the shared ones."""

    router: RouterSpec
    router_weight: Tensor
    """[experts, H] float32; so are its bias and the correction [experts]."""
    router_bias: Tensor | None
    correction: Tensor | None
    routed: GatedFfn
    shared: GatedFfn | None
    shared_gate: Product | None


@dataclass(frozen=True, slots=True)
class StackLayer:
    """A decoder layer of grouped-query attention and a feed-forward network: whole, or one rank's share."""

    attention_norm: Tensor
    after_attention_norm: Tensor | None
    ffn_norm: Tensor
    after_ffn_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None
    qkv: Product
    out: Product
    ffn: GatedFfn | ExpertsFfn
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


class Stack(Protocol):
    """All layers of a stage."""

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        """x [T, H] after the last layer, normed where there is a last norm. The caller gives x up."""
        ...


def runs_stack(
    layers: Sequence[StackLayer], caches: Sequence[LayerKv], norm: Tensor | None, dtype: torch.dtype, ropes: int
) -> bool:
    """Whether the compiled kernels can run these layers in one call."""
    norms = [part for layer in layers for part in _norms(layer)]
    norms += [] if norm is None else [norm]
    cached = [part for kv in caches for part in kv.parts]
    return (
        bool(layers)
        and ropes <= MAX_ROPES
        and dtype in TYPES
        and len({part.dtype for part in norms}) == 1
        and norms[0].dtype in TYPES
        and all(_fit(_products(layer), dtype) for layer in layers)
        and all(part.is_contiguous() for part in cached)
        and all(kv.k.dtype in (dtype, torch.int8) for kv in caches)
        and all(_knows(layer.ffn) for layer in layers)
    )


def runs_experts(ffn: ExpertsFfn, dtype: torch.dtype) -> bool:
    """Whether the compiled kernels can run them in one call."""
    return dtype in TYPES and _fit(_products_of(ffn), dtype) and _knows(ffn)


def _fit(products: Iterable[Product], dtype: torch.dtype) -> bool:
    parts = [part for product in products for part in (product.weight, product.bias) if isinstance(part, Tensor)]
    return all(part.dtype == dtype and part.is_contiguous() and part.is_cpu for part in parts)


def _norms(layer: StackLayer) -> Iterator[Tensor]:
    names = ("attention_norm", "after_attention_norm", "ffn_norm", "after_ffn_norm", "q_norm", "k_norm")
    yield from (part for name in names if (part := getattr(layer, name)) is not None)


def _products(layer: StackLayer) -> Iterator[Product]:
    yield from (layer.qkv, layer.out)
    yield from _products_of(layer.ffn)


def _products_of(ffn: GatedFfn | ExpertsFfn) -> Iterator[Product]:
    if isinstance(ffn, GatedFfn):
        yield from (ffn.gate_up, ffn.down)
        return
    yield from _products_of(ffn.routed)
    if ffn.shared is not None:
        yield from _products_of(ffn.shared)
    if ffn.shared_gate is not None:
        yield ffn.shared_gate


def _knows(ffn: GatedFfn | ExpertsFfn) -> bool:
    if isinstance(ffn, GatedFfn):
        return ffn.gate in GATES
    return (
        _knows(ffn.routed)
        and (ffn.shared is None or _knows(ffn.shared))
        and ffn.router.experts <= MAX_EXPERTS
        and ffn.router.scoring in ("softmax", "sigmoid")
        and (
            ffn.router.groups == 1 or ffn.router.group_score == "max" or ffn.router.experts >= 2 * ffn.router.groups
        )
        # A rank of many may hold no inner column of an expert.
        and _inputs(ffn.routed.down.weight) > 0
    )


def _inputs(weight: Tensor | QuantizedWeight) -> int:
    return weight.inputs if isinstance(weight, QuantizedWeight) else weight.shape[-1]
