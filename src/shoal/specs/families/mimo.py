"""MiMo-V2-Flash: narrow windows with twice the KV heads and sinks, values scaled and narrower than keys."""

from collections.abc import Sequence

from shoal.specs.families.common import Defaults, assemble, dense_ffn, layer_count, layer_types, read_activation
from shoal.specs.families.deepseek import read_sigmoid_router
from shoal.specs.fields import Fields
from shoal.specs.model import AttentionSpec, FfnSpec, LayerSpec, ModelSpec, NormSpec, RopeSpec
from shoal.specs.rope import rope_spec

_FULL, _SLIDING = "full_attention", "sliding_attention"


def parse_mimo_v2(fields: Fields, outer: Fields | None) -> ModelSpec:
    """`sliding_window_size` counts tokens before the query, so the window is one more (as Transformers has it)."""
    pattern = fields.integers("hybrid_layer_pattern")
    count = layer_count(fields)
    if pattern is not None:
        derived: Sequence[str] = [_SLIDING if entry else _FULL for entry in pattern]
    else:
        derived = [_FULL if i == 0 or (i + 1) % 6 == 0 else _SLIDING for i in range(count)]
    types = layer_types(fields, derived, (_FULL, _SLIDING))
    before = fields.optional_size("sliding_window_size")
    window = before + 1 if before is not None else fields.size("sliding_window", default=129)
    kv_heads = fields.size("num_key_value_heads", default=4)
    full = _attention(fields, kv_heads, _rope(fields, _FULL, "rope_theta", 5_000_000.0))
    local = _attention(
        fields,
        fields.size("swa_num_key_value_heads", default=2 * kv_heads),
        _rope(fields, _SLIDING, "swa_rope_theta", 10_000.0),
        window,
    )
    width = fields.size("moe_intermediate_size", default=2048)
    router = read_sigmoid_router(
        Fields({"routed_scaling_factor": 1.0, **_without_null(fields)}, fields.model), groups=1
    )
    experts = FfnSpec("moe", width, read_activation(fields), router=router)
    dense = dense_ffn(fields)
    layers = [
        LayerSpec(full if kind == _FULL else local, experts if sparse else dense)
        for kind, sparse in zip(types, _sparse(fields, count), strict=True)
    ]
    return assemble(
        fields,
        layers,
        Defaults(bos=1, max_position=131_072),
        architecture="MiMoV2FlashForCausalLM",
        norm=NormSpec(fields.number("layernorm_epsilon", "rms_norm_eps", default=1e-5)),
        outer=outer,
    )


def _attention(fields: Fields, kv_heads: int, rope: RopeSpec, window: int | None = None) -> AttentionSpec:
    heads, dim = fields.size("num_attention_heads"), fields.size("head_dim", default=192)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    return AttentionSpec(
        kind="gqa",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=fields.size("v_head_dim", default=128),
        scale=dim**-0.5,
        rope=rope,
        window=window,
        qkv_bias=fields.flag("attention_bias", default=False),
        sinks=window is not None,
        value_scale=fields.number("attention_value_scale", default=0.707),
    )


def _rope(fields: Fields, kind: str, theta_key: str, theta: float) -> RopeSpec:
    dim = fields.size("head_dim", default=192)
    if fields.section("rope_parameters") is not None:
        return rope_spec(fields, dim, layer_type=kind, default_theta=theta, partial=0.334)
    values = {**fields.values, "rope_theta": fields.number(theta_key, default=theta)}
    return rope_spec(Fields(values, fields.model), dim, partial=0.334)


def _without_null(fields: Fields) -> dict[str, object]:
    return {key: value for key, value in fields.values.items() if value is not None}


def _sparse(fields: Fields, count: int) -> list[bool]:
    """`mlp_layer_types`, the published `moe_layer_freq` (one 0 or 1 a layer), or all but the first."""
    words = fields.words("mlp_layer_types")
    marks = [int(word == "sparse") for word in words] if words is not None else fields.integers("moe_layer_freq")
    if marks is None:
        return [index > 0 for index in range(count)]
    if len(marks) != count:
        raise fields.error("moe_layer_freq", marks, f"a list of num_hidden_layers ({count}) entries")
    return [bool(mark) for mark in marks]
