"""Llama-4 (text): chunked local layers with positions, full layers without; experts weighted on their input."""

from shoal.specs.families.common import (
    Defaults,
    assemble,
    dense_ffn,
    gqa,
    layer_count,
    layer_types,
    read_activation,
    read_heads,
)
from shoal.specs.fields import Fields
from shoal.specs.model import AttentionSpec, FfnSpec, LayerSpec, ModelSpec, NormSpec, RouterSpec
from shoal.specs.rope import rope_spec


def parse_llama4(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Every `interleave_moe_layer_step`-th layer has experts and a shared one; the others are dense and wider."""
    count = layer_count(fields)
    step = fields.size("interleave_moe_layer_step", default=1)
    listed = fields.integers("moe_layers")
    sparse = set(listed) if listed is not None else set(range(step - 1, count, step))
    width = fields.size("intermediate_size")
    router = RouterSpec(
        experts=fields.size("num_local_experts", "num_experts", default=16),
        top_k=fields.size("num_experts_per_tok", default=1),
        scoring="sigmoid",
        normalize=False,
        scale_input=True,
    )
    experts = FfnSpec("moe", width, read_activation(fields), router=router, shared_intermediate=width)
    dense = dense_ffn(fields, intermediate=fields.size("intermediate_size_mlp", default=16384))
    layers = [
        LayerSpec(attention, experts if index in sparse else dense)
        for index, attention in enumerate(_attentions(fields))
    ]
    return assemble(
        fields,
        layers,
        Defaults(bos=1, eos=2, max_position=4096 * 32),
        architecture="Llama4ForCausalLM",
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-5)),
        outer=outer,
    )


def _attentions(fields: Fields) -> list[AttentionSpec]:
    """A 1 in `no_rope_layers` means that the layer does rotate; by default every fourth doesn't."""
    count = layer_count(fields)
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    every = fields.size("no_rope_layer_interval", default=4)
    rotates = list(fields.integers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(count)])
    if len(rotates) < count:
        raise fields.error("no_rope_layers", rotates, f"at least {count} entries, each 0 or 1")
    stated = fields.stated("attention_chunk_size")
    chunk = fields.optional_size("attention_chunk_size") if stated else 8192
    kinds = ("full_attention", "chunked_attention")
    types = layer_types(fields, [kinds[bool(rotates[i]) and chunk is not None] for i in range(count)], kinds)
    bias = fields.flag("attention_bias", default=False)
    rope = rope_spec(fields, heads.head_dim, default_theta=500_000.0, interleaved=True)
    norm = "l2" if fields.flag("use_qk_norm", default=True) else None
    tuned = fields.flag("attn_temperature_tuning", default=True)
    floor = fields.size("floor_scale", default=8192)
    strength = fields.number("attn_scale", default=0.1)
    attentions = []
    for index in range(count):
        local = chunk if types[index] == "chunked_attention" else None
        if rotates[index]:
            spec = gqa(heads, rope=rope, qk_norm=norm, chunk=local, bias=bias)
        else:
            spec = gqa(
                heads,
                chunk=local,
                bias=bias,
                temperature_floor=floor if tuned else None,
                temperature_scale=strength if tuned else 0.0,
            )
        attentions.append(spec)
    return attentions
