"""Qwen2 and Qwen3, dense and mixture-of-experts."""

from typing import Any

from shoal.specs.families.common import (
    Defaults,
    Heads,
    assemble,
    dense_ffn,
    gqa,
    layer_count,
    layer_types,
    read_activation,
    read_heads,
)
from shoal.specs.fields import Fields
from shoal.specs.model import AttentionSpec, FfnSpec, LayerSpec, ModelSpec, RouterSpec
from shoal.specs.rope import rope_spec

_DEFAULTS = Defaults(max_position=32768)


def parse_qwen2(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Bias on q, k and v only. The head width is hidden / heads unless the config has a `head_dim`."""
    attentions = _attentions(fields, read_heads(fields, kv_heads=32), _late_windows(fields), qkv_bias=True)
    layers = [LayerSpec(attention, dense_ffn(fields)) for attention in attentions]
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen2ForCausalLM", outer=outer)


def parse_qwen3(fields: Fields, outer: Fields | None) -> ModelSpec:
    """An RMS norm of every query and key head; `attention_bias` is on all four projections."""
    bias = fields.flag("attention_bias", default=False)
    heads = read_heads(fields, kv_heads=32, head_dim=128)
    attentions = _attentions(fields, heads, _late_windows(fields), bias=bias, qk_norm="head")
    layers = [LayerSpec(attention, dense_ffn(fields)) for attention in attentions]
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen3ForCausalLM", outer=outer)


def parse_qwen2_moe(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Experts beside one always-on expert scaled by a sigmoid gate; chosen weights are not renormalized.

    Where the config lists no layer types, every other layer below `max_window_layers` slides.
    """
    heads = read_heads(fields, kv_heads=16)
    window = _window(fields)
    below = fields.size("max_window_layers", default=28, minimum=0)
    slides = [window is not None and i % 2 == 0 and i < below for i in range(layer_count(fields))]
    attentions = _attentions(fields, heads, slides, qkv_bias=fields.flag("qkv_bias", default=True))
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size", default=1408),
        activation=read_activation(fields),
        router=_router(fields, experts=60, top_k=4),
        shared_intermediate=fields.size("shared_expert_intermediate_size", default=5632),
        shared_gate=True,
    )
    layers = _sparse_layers(fields, attentions, experts)
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen2MoeForCausalLM", outer=outer)


def parse_qwen3_moe(fields: Fields, outer: Fields | None) -> ModelSpec:
    """As Qwen3 with experts; with `use_sliding_window` every layer slides."""
    bias = fields.flag("attention_bias", default=False)
    heads = read_heads(fields, kv_heads=4)
    rope = rope_spec(fields, heads.head_dim)
    attention = gqa(heads, rope=rope, window=_window(fields), bias=bias, qk_norm="head")
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size", default=768),
        activation=read_activation(fields),
        router=_router(fields, experts=128, top_k=8),
    )
    layers = _sparse_layers(fields, [attention] * layer_count(fields), experts)
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen3MoeForCausalLM", outer=outer)


def _router(fields: Fields, *, experts: int, top_k: int) -> RouterSpec:
    count = fields.size("num_experts", "num_local_experts", default=experts)
    return RouterSpec(
        experts=count,
        top_k=fields.size("num_experts_per_tok", default=top_k, maximum=count),
        normalize=fields.flag("norm_topk_prob", default=False),
    )


def _window(fields: Fields) -> int | None:
    return fields.size("sliding_window", default=4096) if fields.flag("use_sliding_window", default=False) else None


def _late_windows(fields: Fields) -> list[bool]:
    """Qwen2 and Qwen3: layers from `max_window_layers` on slide, where sliding is used at all."""
    first = fields.size("max_window_layers", default=28, minimum=0)
    return [_window(fields) is not None and index >= first for index in range(layer_count(fields))]


def _attentions(fields: Fields, heads: Heads, slides: list[bool], **changes: Any) -> list[AttentionSpec]:
    """One spec a layer, sliding where `layer_types` says so or, without it, where `slides` does."""
    kinds = ("full_attention", "sliding_attention")
    types = layer_types(fields, [kinds[slide] for slide in slides], kinds)
    full = gqa(heads, rope=rope_spec(fields, heads.head_dim, layer_type=kinds[0]), **changes)
    rope = rope_spec(fields, heads.head_dim, layer_type=kinds[1])
    sliding = gqa(heads, rope=rope, window=_window(fields), **changes)
    return [sliding if word == kinds[1] else full for word in types]


def _sparse_layers(fields: Fields, attentions: list[AttentionSpec], experts: FfnSpec) -> list[LayerSpec]:
    """A layer is sparse unless `mlp_only_layers` lists it or `decoder_sparse_step` skips it."""
    step = fields.size("decoder_sparse_step", default=1)
    dense_only = set(fields.integers("mlp_only_layers") or ())
    layers = []
    for index, attention in enumerate(attentions):
        sparse = index not in dense_only and (index + 1) % step == 0
        layers.append(LayerSpec(attention, experts if sparse else dense_ffn(fields)))
    return layers
