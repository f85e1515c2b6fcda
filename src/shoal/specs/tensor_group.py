"""One group of a model's tensors: its shape, its part of the model, and how it may be split."""

import math
from dataclasses import dataclass
from typing import Literal

Part = Literal[
    "embedding",
    "attention",
    "dense_ffn",
    "shared_experts",
    "routed_experts",
    "router",
    "norms",
    "residual",
    "lm_head",
]
Shard = Literal["column", "row", "kv", "vocab", "replicated"]
"""How tensor parallelism splits a tensor: `column` and `vocab` its first axis, `row` its last, `kv` its first by KV
heads (whole copies where ranks outnumber them), `replicated` not at all."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of the same shape and role.

    `name` is a pattern with `{layer}` and `{expert}`. Routed experts are split over expert-parallel ranks along
    `experts`, and `shard` says how one expert is split where it is; all else is replicated over those ranks.
    """

    name: str
    shape: tuple[int, ...]
    """Of one tensor, in elements."""
    part: Part
    layers: tuple[int, ...] = ()
    """Indices of the layers that have it, ascending; empty: outside the layers."""
    experts: int = 1
    """How many a layer has."""
    active: int = 1
    """How many of those one token uses."""
    shard: Shard = "replicated"
    units: int = 1
    """Indivisible pieces along the split axis: heads, channels, rows of the vocabulary."""
    quantizable: bool = False
    """Quantization methods convert it unless it is listed among the exceptions."""
    dtype: str | None = None
    """Fixed whatever the model's dtype is: `float32`, `int64`."""
    parameter: bool = True
    """False: a stored buffer, which takes bytes but is no parameter (router correction biases)."""

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return math.prod(self.shape)

    @property
    def tensors(self) -> int:
        """Tensors in the group, over all layers and experts."""
        return self.experts * (len(self.layers) or 1)

    def total(self) -> int:
        return self.elements * self.tensors

    def active_total(self) -> int:
        """Elements that one token passes through."""
        return self.elements * self.active * (len(self.layers) or 1)
