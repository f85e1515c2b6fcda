"""Mixtral, gpt-oss and MiniMax-M2: every layer grouped-query attention and experts, no shared ones."""

from shoal.specs.families.common import (
    Defaults,
    assemble,
    gqa,
    layer_count,
    layer_types,
    read_activation,
    read_heads,
)
from shoal.specs.fields import Fields
from shoal.specs.model import FfnSpec, LayerSpec, ModelSpec, NormSpec, RouterSpec
from shoal.specs.rope import rope_spec


def parse_mixtral(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Softmax over all experts, the chosen weights renormalized; `intermediate_size` is one expert's."""
    heads = read_heads(fields, kv_heads=8)
    rope = rope_spec(fields, heads.head_dim, default_theta=1_000_000.0)
    attention = gqa(heads, rope=rope, window=fields.optional_size("sliding_window"))
    router = RouterSpec(
        experts=fields.size("num_local_experts", "num_experts", default=8),
        top_k=fields.size("num_experts_per_tok", default=2),
    )
    experts = FfnSpec("moe", fields.size("intermediate_size"), read_activation(fields), router=router)
    layers = [LayerSpec(attention, experts)] * layer_count(fields)
    defaults = Defaults(eps=1e-5, bos=1, eos=2, max_position=4096 * 32)
    return assemble(fields, layers, defaults, architecture="MixtralForCausalLM", outer=outer)


# What a config without rope parameters means (the class's default).
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def parse_gpt_oss(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Sliding and full layers in turn, a learned sink a head, clamped SwiGLU experts with biases."""
    if fields.get("rope_scaling", "rope_parameters")[1] is None:
        fields = Fields({**fields.values, "rope_parameters": _GPT_OSS_ROPE}, fields.model)
    heads = read_heads(fields, kv_heads=8, head_dim=64)
    bias = fields.flag("attention_bias", default=True)
    kinds = ("sliding_attention", "full_attention")
    types = layer_types(fields, [kinds[i % 2] for i in range(layer_count(fields))], kinds)
    rope = rope_spec(fields, heads.head_dim, default_theta=150_000.0)
    full = gqa(heads, rope=rope, bias=bias, sinks=True)
    window = fields.size("sliding_window", default=128)
    local = gqa(heads, rope=rope, bias=bias, sinks=True, window=window)
    router = RouterSpec(
        experts=fields.size("num_local_experts", "num_experts", default=128),
        top_k=fields.size("num_experts_per_tok", "experts_per_token", default=4),
        bias=True,
        normalize=False,
        softmax_after_top_k=True,
    )
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("intermediate_size"),
        activation="swiglu_oai",
        router=router,
        swiglu_limit=fields.number("swiglu_limit", default=7.0),
        swiglu_alpha=fields.number("swiglu_alpha", default=1.702),
        experts_bias=True,
    )
    layers = [LayerSpec(local if word == "sliding_attention" else full, experts) for word in types]
    norm = NormSpec(fields.number("rms_norm_eps", default=1e-5))
    defaults = Defaults(max_position=131_072)
    return assemble(fields, layers, defaults, architecture="GptOssForCausalLM", norm=norm, outer=outer)


def parse_minimax_m2(fields: Fields, outer: Fields | None) -> ModelSpec:
    """RMS norms over all heads of q and k at once; sigmoid scores with a correction bias for choosing."""
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    rotary = fields.optional_size("rotary_dim")
    partial = rotary / heads.head_dim if rotary is not None else None
    rope = rope_spec(fields, heads.head_dim, default_theta=5_000_000.0, partial=partial)
    router = RouterSpec(
        experts=fields.size("num_local_experts", "num_experts", default=256),
        top_k=fields.size("num_experts_per_tok", default=8),
        scoring="sigmoid",
        correction_bias=True,
    )
    experts = FfnSpec("moe", fields.size("intermediate_size"), read_activation(fields), router=router)
    layers = [LayerSpec(gqa(heads, rope=rope, qk_norm="full"), experts)] * layer_count(fields)
    defaults = Defaults(bos=200034, eos=200020, max_position=196_608)
    return assemble(fields, layers, defaults, architecture="MiniMaxM2ForCausalLM", outer=outer)
