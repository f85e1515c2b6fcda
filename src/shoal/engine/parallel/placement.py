"""Which part of a model a rank holds: its stage's layers, and of each its heads."""

from dataclasses import replace

from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import HeadShard, shard_heads
from shoal.specs.model import AttentionSpec, ModelSpec
from shoal.specs.stages import stage_layers


def own_layers(spec: ModelSpec, mesh: Mesh) -> range:
    """Layers of this rank's stage, by the rule that the planner sizes stages with."""
    return stage_layers(spec, mesh.layout.pp)[mesh.at.pp]


def own_heads(attention: AttentionSpec, mesh: Mesh) -> HeadShard:
    """This rank's query and KV heads of a grouped-query attention."""
    return shard_heads(attention.heads, attention.kv_heads, mesh.layout.tp)[mesh.at.tp]


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
