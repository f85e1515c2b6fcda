"""Which part of a model a rank holds: its stage's layers, and of each its heads."""

from dataclasses import replace

from shoal.engine.errors import InvalidOption
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import HeadShard, shard_heads
from shoal.specs.model import AttentionSpec, ModelSpec
from shoal.specs.stages import stage_layers as balanced


def stage_layers(spec: ModelSpec, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage, by the rule that the planner sizes stages with.

    Raises InvalidOption (field `pp`) for more stages than layers.
    """
    if not 1 <= stages <= len(spec.layers):
        raise InvalidOption("pp", stages, f"1 to {len(spec.layers)}, the number of layers")
    return balanced(spec, stages)


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
