"""Gemma 3 (text): sliding layers with a full one every sixth, norms on both sides of attention and FFN."""

from shoal.specs.families.common import Defaults, assemble, dense_ffn, gqa, layer_count, layer_types, read_heads
from shoal.specs.fields import Fields
from shoal.specs.model import LayerSpec, ModelSpec, NormSpec, RopeSpec
from shoal.specs.rope import rope_spec

_TYPES = ("sliding_attention", "full_attention")


def parse_gemma3(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Scores are scaled by `query_pre_attn_scalar`^-0.5, which is not always head_dim^-0.5 (27B: 168 against 128).

    Transformers reads `attn_logit_softcapping` but never applies it in Gemma 3, so it is not in the spec.
    Bidirectional attention (embedding models) is refused: the engine is causal.
    """
    if fields.flag("use_bidirectional_attention", default=False):
        raise fields.error("use_bidirectional_attention", True, "false: only causal language models are served")
    heads = read_heads(fields, kv_heads=4, head_dim=256)
    count = layer_count(fields)
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    types = layer_types(fields, [_TYPES[(i + 1) % every == 0] for i in range(count)], _TYPES)
    bias = fields.flag("attention_bias", default=False)
    scale = fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    full = gqa(heads, rope=_full_rope(fields, heads.head_dim), scale=scale, qk_norm="head", bias=bias)
    local = gqa(
        heads,
        rope=_local_rope(fields, heads.head_dim),
        scale=scale,
        qk_norm="head",
        bias=bias,
        window=fields.size("sliding_window", default=4096),
    )
    ffn = dense_ffn(fields, activation="gelu_pytorch_tanh")
    layers = [LayerSpec(local if word == "sliding_attention" else full, ffn) for word in types]
    return assemble(
        fields,
        layers,
        Defaults(tied=True, bos=2, eos=1, max_position=131_072),
        architecture="Gemma3ForCausalLM",
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6), plus_one=True, sandwich=True),
        embedding_scale=fields.size("hidden_size") ** 0.5,
        final_softcap=fields.number("final_logit_softcapping"),
        outer=outer,
    )


def _full_rope(fields: Fields, head_dim: int) -> RopeSpec:
    return rope_spec(fields, head_dim, layer_type="full_attention", default_theta=1_000_000.0)


def _local_rope(fields: Fields, head_dim: int) -> RopeSpec:
    """`rope_scaling` of older configs is for the full layers only; the local base is `rope_local_base_freq`."""
    theta = fields.number("rope_local_base_freq", default=10_000.0)
    nested = fields.section("rope_parameters")
    local = nested.section("sliding_attention") if nested is not None else None
    values: dict[str, object] = {**fields.values, "rope_theta": theta, "rope_scaling": None}
    values["rope_parameters"] = dict(local.values) if local is not None else None
    return rope_spec(
        Fields(values, fields.model, "rope_parameters.sliding_attention."), head_dim, default_theta=theta
    )
