"""Which part of a model a rank holds: its stage's layers, and of each its heads."""

from dataclasses import replace
from functools import lru_cache

from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import HeadShard, balance_stages, shard_heads
from shoal.specs.model import AttentionSpec, ModelSpec
from shoal.specs.tensors import tensor_groups


@lru_cache(maxsize=64)
def stage_layers(spec: ModelSpec, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage: the stage that reads most matrix elements a token reads as few as can be.

    Raises InvalidOption (field `pp`) for more stages than layers.
    """
    return balance_stages(layer_costs(spec), stages)


def layer_costs(spec: ModelSpec) -> tuple[float, ...]:
    """Matrix elements that a decoded token passes through, by layer; only chosen experts count.

    The embedding's one row is added to the first layer, the head's whole matrix to the last.
    """
    costs = [0.0] * len(spec.layers)
    for group in tensor_groups(spec):
        for layer in group.layers:
            costs[layer] += group.elements * group.active
    costs[0] += spec.hidden
    costs[-1] += spec.vocab * spec.hidden
    return tuple(costs)


def own_layers(spec: ModelSpec, mesh: Mesh) -> range:
    """Layers of this rank's stage."""
    return stage_layers(spec, mesh.spec.pp)[mesh.at.pp]


def own_heads(attention: AttentionSpec, mesh: Mesh) -> HeadShard:
    """This rank's query and KV heads of a grouped-query attention."""
    return shard_heads(attention.heads, attention.kv_heads, mesh.spec.tp)[mesh.at.tp]


def held(spec: ModelSpec, mesh: Mesh) -> ModelSpec:
    """The model as this rank's KV memory sees it: its stage's layers, with its heads of each.

    Attention that caches one latent for all heads is held whole by every rank.
    """
    layers = []
    for index in own_layers(spec, mesh):
        layer = spec.layers[index]
        if layer.attention.kind == "gqa":
            heads = own_heads(layer.attention, mesh)
            layer = replace(layer, attention=replace(layer.attention, heads=len(heads.q), kv_heads=len(heads.kv)))
        layers.append(layer)
    return replace(spec, layers=tuple(layers))
