"""Layers one after another in one call of the compiled kernels: what such layers are.

Between two kernels called from Python lie tens of microseconds, and a decode step of a small model has hundreds.
Results are those of the ops called one by one: the same bits, but for the weights of experts, which are a softmax.
The structs of the same names in csrc/kernels/interface.h are filled from these, field by field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.quantized import QuantizedWeight
from shoal.engine.parallel.sums import RankSums
from shoal.specs.model import RouterSpec


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
class FusedLayer:
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
    window: int | None
    scale: float
    softcap: float | None
    rope: int | None
    """Which of the model's rotations."""
    rope_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class FusedStage:
    """The layers of a pipeline stage."""

    layers: Sequence[FusedLayer]
    caches: Sequence[LayerKv]
    norm: Tensor | None
    """After the last layer."""
    eps: float
    dtype: torch.dtype
    sums: RankSums | None
    """None: all of the layers is here; else one rank's share, and these add it up with the others'."""


class FusedLayers(Protocol):
    """All layers of a stage as one call."""

    def __call__(self, x: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], batch: Batch) -> Tensor:
        """x [T, H] after the last layer, normed where there is a last norm. The caller gives x up."""
        ...
