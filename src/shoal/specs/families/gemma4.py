"""Gemma 4 (text), without per-layer embeddings: wide full layers whose values are their keys, experts beside a
dense FFN."""

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
from shoal.specs.model import FfnSpec, LayerSpec, ModelSpec, NormSpec, RopeSpec, RouterSpec
from shoal.specs.rope import rope_spec

_SLIDING, _FULL = "sliding_attention", "full_attention"
_DEFAULT_ROPE = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def parse_gemma4(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Scores are not scaled: q and k are normed. The last layer is full whatever the list says.

    Refused, as nothing here builds it: per-layer input embeddings, layers that share another's keys and values,
    and bidirectional attention for all tokens.
    """
    _refuse(fields)
    count = layer_count(fields)
    every = 6
    types = list(
        layer_types(fields, [_FULL if (i + 1) % every == 0 else _SLIDING for i in range(count)], (_SLIDING, _FULL))
    )
    types[-1] = _FULL
    heads = read_heads(fields, kv_heads=4, head_dim=256)
    shared_kv = fields.flag("attention_k_eq_v", default=False)
    full_kv = fields.optional_size("num_global_key_value_heads") if shared_kv else None
    wide = Heads(heads.hidden, heads.heads, full_kv or heads.kv_heads, fields.size("global_head_dim", default=512))
    bias = fields.flag("attention_bias", default=False)
    local = gqa(
        heads,
        scale=1.0,
        rope=_rope(fields, heads.head_dim, _SLIDING),
        window=fields.size("sliding_window", default=512),
        qk_norm="head",
        value_norm=True,
        bias=bias,
    )
    full = gqa(
        wide,
        scale=1.0,
        rope=_rope(fields, wide.head_dim, _FULL),
        qk_norm="head",
        value_norm=True,
        value_from_key=shared_kv,
        bias=bias,
    )
    ffn = _ffn(fields)
    return assemble(
        fields,
        [LayerSpec(full if kind == _FULL else local, ffn) for kind in types],
        Defaults(tied=True, bos=2, eos=1, max_position=131_072),
        architecture="Gemma4ForCausalLM",
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6), sandwich=True, layer_scalar=True),
        embedding_scale=fields.size("hidden_size") ** 0.5,
        final_softcap=fields.number("final_logit_softcapping"),
        outer=outer,
    )


def _refuse(fields: Fields) -> None:
    if fields.size("hidden_size_per_layer_input", default=256, minimum=0):
        raise fields.error(
            "hidden_size_per_layer_input",
            fields.values.get("hidden_size_per_layer_input", 256),
            "0 (no such inputs)",
        )
    if fields.size("num_kv_shared_layers", default=0, minimum=0):
        raise fields.error("num_kv_shared_layers", fields.values["num_kv_shared_layers"], "0 (no sharing)")
    if fields.text("use_bidirectional_attention") == "all":
        raise fields.error("use_bidirectional_attention", "all", "null or vision: only causal models are served")


def _rope(fields: Fields, head_dim: int, kind: str) -> RopeSpec:
    if fields.section("rope_parameters") is None:
        fields = Fields({**fields.values, "rope_parameters": _DEFAULT_ROPE}, fields.model)
    return rope_spec(fields, head_dim, layer_type=kind)


def _ffn(fields: Fields) -> FfnSpec:
    activation = "gelu_pytorch_tanh"
    if not fields.flag("enable_moe_block", default=False):
        return dense_ffn(fields, activation=activation)
    router = RouterSpec(
        experts=fields.size("num_experts"),
        top_k=fields.size("top_k_experts", maximum=fields.size("num_experts")),
        input_scale=True,
    )
    return FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size"),
        activation=read_activation(fields, activation),
        router=router,
        beside_dense=fields.size("intermediate_size"),
    )
