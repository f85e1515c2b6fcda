"""Every tensor of a model, grouped: the one truth from which parameters and bytes are counted.

Names and shapes are those of Hugging Face checkpoints (Transformers 5.24 modeling code), one expert at a time.
Identical layers share a group, so a model is a few dozen groups and counting is fast; results are cached on the
(hashable) spec.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from shoal.specs.model import LayerSpec, ModelSpec
from shoal.specs.tensor_group import Part, Shard, TensorGroup
from shoal.specs.tensor_layers import layer_groups, model_groups

__all__ = [
    "ParameterCounts",
    "Part",
    "PartSizes",
    "Shard",
    "TensorGroup",
    "mtp_groups",
    "parameter_counts",
    "part_sizes",
    "tensor_groups",
]


@dataclass(frozen=True, slots=True)
class PartSizes:
    """A quantity by part of the model: parameters or bytes."""

    embedding: int = 0
    attention: int = 0
    dense_ffn: int = 0
    shared_experts: int = 0
    routed_experts: int = 0
    router: int = 0
    norms: int = 0
    residual: int = 0
    """What mixes residual streams or attends over earlier blocks (DeepSeek-V4, Kimi-K3)."""
    lm_head: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of the text model; tied embeddings count once, buffers and multi-token prediction not at all."""

    total: int
    active: int
    """What one token passes through: all but the experts not chosen."""
    active_without_embedding: int
    """`active` less the input embedding, which is looked up, not multiplied; a tied one stays, as the head."""
    by_part: PartSizes
    mtp: int
    """Parameters of the multi-token-prediction layers, in no other figure."""


@lru_cache(maxsize=1024)
def tensor_groups(spec: ModelSpec) -> tuple[TensorGroup, ...]:
    """Every tensor of the text model, multi-token prediction left out. Cached."""
    by_layer: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        by_layer.setdefault(layer, []).append(index)
    groups: list[TensorGroup] = list(model_groups(spec))
    for layer, indices in by_layer.items():
        groups.extend(replace(group, layers=tuple(indices)) for group in layer_groups(spec, layer))
    return tuple(_merged(groups))


@lru_cache(maxsize=1024)
def mtp_groups(spec: ModelSpec) -> tuple[TensorGroup, ...]:
    """Tensors of the multi-token-prediction layers that come with some checkpoints. Cached.

    Their shapes follow DeepSeek-V3's: a decoder layer, the projection of [embedding, hidden] and its norms, and,
    where the checkpoint repeats them, the embedding and the head.
    """
    if spec.mtp is None:
        return ()
    indices = tuple(range(len(spec.layers), len(spec.layers) + spec.mtp.layers))
    prefix, hidden = "model.layers.{layer}.", spec.hidden
    groups = list(layer_groups(spec, spec.mtp.layer))
    groups.append(TensorGroup(prefix + "eh_proj.weight", (hidden, 2 * hidden), "attention"))
    groups.extend(
        TensorGroup(f"{prefix}{norm}.weight", (hidden,), "norms") for norm in ("enorm", "hnorm", "shared_head.norm")
    )
    if spec.mtp.own_embeddings:
        table = (spec.vocab, hidden)
        groups.append(
            TensorGroup(prefix + "embed_tokens.weight", table, "embedding", shard="vocab", units=spec.vocab)
        )
        groups.append(
            TensorGroup(prefix + "shared_head.head.weight", table, "lm_head", shard="vocab", units=spec.vocab)
        )
    return tuple(replace(group, layers=indices) for group in groups)


@lru_cache(maxsize=1024)
def parameter_counts(spec: ModelSpec) -> ParameterCounts:
    """Exact parameter counts of the text model, equal to Transformers' on the meta device. Cached."""
    groups = [group for group in tensor_groups(spec) if group.parameter]
    active = sum(group.active_total() for group in groups)
    looked_up = 0 if spec.tied_embeddings else spec.vocab * spec.hidden
    by_part = part_sizes((group.part, group.total()) for group in groups)
    return ParameterCounts(
        total=by_part.total,
        active=active,
        active_without_embedding=active - looked_up,
        by_part=by_part,
        mtp=sum(group.total() for group in mtp_groups(spec) if group.parameter),
    )


def part_sizes(amounts: Iterable[tuple[Part, int]]) -> PartSizes:
    """Amounts summed by part."""
    sums: dict[str, int] = {}
    for part, amount in amounts:
        sums[part] = sums.get(part, 0) + amount
    return PartSizes(**sums)


def _merged(groups: Iterable[TensorGroup]) -> list[TensorGroup]:
    """Groups that differ in nothing but their layers, made one."""
    layers: dict[TensorGroup, list[int]] = {}
    for group in groups:
        layers.setdefault(replace(group, layers=()), []).extend(group.layers)
    return [replace(group, layers=tuple(sorted(indices))) for group, indices in layers.items()]
