"""Qwen2 and Qwen3, dense and mixture-of-experts."""

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
    attentions = _attentions(fields, read_heads(fields, kv_heads=32), qkv_bias=True, out_bias=False)
    layers = [LayerSpec(attention, dense_ffn(fields)) for attention in attentions]
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen2ForCausalLM", outer=outer)


def parse_qwen3(fields: Fields, outer: Fields | None) -> ModelSpec:
    """An RMS norm of every query and key head; `attention_bias` is on all four projections."""
    bias = fields.flag("attention_bias", default=False)
    heads = read_heads(fields, kv_heads=32, head_dim=128)
    attentions = _attentions(fields, heads, qkv_bias=bias, out_bias=bias, qk_norm="head")
    layers = [LayerSpec(attention, dense_ffn(fields)) for attention in attentions]
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen3ForCausalLM", outer=outer)


def parse_qwen2_moe(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Experts beside one always-on expert scaled by a sigmoid gate; chosen weights are not renormalized."""
    bias = fields.flag("qkv_bias", default=True)
    attentions = _attentions(fields, read_heads(fields, kv_heads=16), qkv_bias=bias, out_bias=False)
    router = RouterSpec(
        experts=fields.size("num_experts", "num_local_experts", default=60),
        top_k=fields.size("num_experts_per_tok", default=4),
        normalize=fields.flag("norm_topk_prob", default=False),
    )
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size", default=1408),
        activation=read_activation(fields),
        router=router,
        shared_intermediate=fields.size("shared_expert_intermediate_size", default=5632),
        shared_gate=True,
    )
    layers = _sparse_layers(fields, attentions, experts)
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen2MoeForCausalLM", outer=outer)


def parse_qwen3_moe(fields: Fields, outer: Fields | None) -> ModelSpec:
    bias = fields.flag("attention_bias", default=False)
    heads = read_heads(fields, kv_heads=4)
    attentions = _attentions(fields, heads, qkv_bias=bias, out_bias=bias, qk_norm="head")
    router = RouterSpec(
        experts=fields.size("num_experts", "num_local_experts", default=128),
        top_k=fields.size("num_experts_per_tok", default=8),
        normalize=fields.flag("norm_topk_prob", default=False),
    )
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size", default=768),
        activation=read_activation(fields),
        router=router,
    )
    layers = _sparse_layers(fields, attentions, experts)
    return assemble(fields, layers, _DEFAULTS, architecture="Qwen3MoeForCausalLM", outer=outer)


def _attentions(fields: Fields, heads: Heads, **changes: object) -> list[AttentionSpec]:
    """One spec a layer: with `use_sliding_window`, layers from `max_window_layers` on slide."""
    count = layer_count(fields)
    window = (
        fields.size("sliding_window", default=4096) if fields.flag("use_sliding_window", default=False) else None
    )
    first = fields.size("max_window_layers", default=28, minimum=0)
    derived = [
        "sliding_attention" if window is not None and index >= first else "full_attention" for index in range(count)
    ]
    types = layer_types(fields, derived, ("full_attention", "sliding_attention"))
    full = gqa(heads, rope=rope_spec(fields, heads.head_dim, layer_type="full_attention"), **changes)
    sliding_rope = rope_spec(fields, heads.head_dim, layer_type="sliding_attention")
    sliding = gqa(heads, rope=sliding_rope, window=window, **changes)
    return [sliding if word == "sliding_attention" else full for word in types]


def _sparse_layers(fields: Fields, attentions: list[AttentionSpec], experts: FfnSpec) -> list[LayerSpec]:
    """A layer is sparse unless `mlp_only_layers` lists it or `decoder_sparse_step` skips it."""
    step = fields.size("decoder_sparse_step", default=1)
    dense_only = set(fields.integers("mlp_only_layers") or ())
    layers = []
    for index, attention in enumerate(attentions):
        sparse = index not in dense_only and (index + 1) % step == 0
        layers.append(LayerSpec(attention, experts if sparse else dense_ffn(fields)))
    return layers
