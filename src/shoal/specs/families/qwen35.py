"""Qwen3.5 mixture of experts (text): three gated-delta-net layers to one of full, gated attention."""

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
from shoal.specs.model import AttentionSpec, FfnSpec, LayerSpec, LinearStateSpec, ModelSpec, NormSpec, RouterSpec
from shoal.specs.rope import rope_spec

_LINEAR, _FULL = "linear_attention", "full_attention"


def parse_qwen3_5_moe(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Full layers: a sigmoid gate from the doubled query projection on their output, a quarter of the head rotated.

    Vision is not built; for text, multimodal RoPE is the plain one.
    """
    every = fields.size("full_attention_interval", default=4)
    derived = [_LINEAR if (i + 1) % every else _FULL for i in range(layer_count(fields))]
    types = layer_types(fields, derived, (_LINEAR, _FULL))
    heads = read_heads(fields, kv_heads=2, head_dim=256)
    bias = fields.flag("attention_bias", default=False)
    rope = rope_spec(fields, heads.head_dim, partial=0.25)
    full = gqa(heads, rope=rope, qk_norm="head", output_gate=True, bias=bias)
    linear = _gated_delta_net(fields)
    count = fields.size("num_experts", "num_local_experts", default=256)
    experts = FfnSpec(
        kind="moe",
        intermediate=fields.size("moe_intermediate_size", default=512),
        activation=read_activation(fields),
        router=RouterSpec(count, fields.size("num_experts_per_tok", default=8, maximum=count)),
        shared_intermediate=fields.size("shared_expert_intermediate_size", default=512),
        shared_gate=True,
    )
    layers = [LayerSpec(full if kind == _FULL else linear, experts) for kind in types]
    norm = NormSpec(fields.number("rms_norm_eps", default=1e-6), plus_one=True)
    return assemble(
        fields,
        layers,
        Defaults(max_position=32768),
        architecture="Qwen3_5MoeForCausalLM",
        norm=norm,
        outer=outer,
    )


def _gated_delta_net(fields: Fields) -> AttentionSpec:
    """The state is [value heads, key width, value width] (arXiv:2412.06464); the convolution is over q, k, v."""
    key_heads = fields.size("linear_num_key_heads", default=16)
    value_heads = fields.size("linear_num_value_heads", default=32)
    key_dim = fields.size("linear_key_head_dim", default=128)
    value_dim = fields.size("linear_value_head_dim", default=128)
    kernel = fields.size("linear_conv_kernel_dim", default=4)
    if value_heads % key_heads:
        raise fields.error("linear_num_value_heads", value_heads, f"a multiple of the key heads ({key_heads})")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    state = LinearStateSpec(
        variant="gated_delta_net",
        state_elements=value_heads * key_dim * value_dim,
        conv_elements=channels * (kernel - 1),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        kernel=kernel,
    )
    return AttentionSpec("linear", value_heads, key_heads, key_dim, value_dim, key_dim**-0.5, None, linear=state)
