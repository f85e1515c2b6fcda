"""Kimi Linear and Kimi-K3 (text): Kimi delta attention with a latent-attention layer, without positions, every few.

K3 adds to Kimi Linear a full-rank output gate on both kinds, experts that work in a narrower latent space, and
sublayer inputs that attend over the outputs of earlier blocks. The shapes of those are taken from public
implementations that load its checkpoint; Transformers 5.24 has none of them.
"""

from dataclasses import replace

from shoal.specs.families.common import (
    Defaults,
    assemble,
    dense_ffn,
    first_sparse,
    layer_count,
    layer_types,
    read_activation,
)
from shoal.specs.families.deepseek import read_mla, read_sigmoid_router
from shoal.specs.fields import Fields
from shoal.specs.model import AttentionSpec, FfnSpec, LayerSpec, LinearStateSpec, ModelSpec, NormSpec
from shoal.specs.rope import rope_spec

_LINEAR, _FULL = "linear_attention", "full_attention"


def parse_kimi_linear(fields: Fields, outer: Fields | None) -> ModelSpec:
    linear_config = fields.section("linear_attn_config") or Fields({}, fields.model, "linear_attn_config.")
    types = layer_types(fields, _types(fields, linear_config), (_LINEAR, _FULL))
    linear, full = _delta_attention(fields, linear_config), _latent_attention(fields)
    width = fields.size("moe_intermediate_size", default=1024)
    stated = {"routed_scaling_factor": 2.446, **{k: v for k, v in fields.values.items() if v is not None}}
    experts = FfnSpec(
        kind="moe",
        intermediate=width,
        activation=read_activation(fields),
        router=read_sigmoid_router(Fields(stated, fields.model), groups=1),
        shared_intermediate=width * fields.size("num_shared_experts", "n_shared_experts", default=1, minimum=0),
        latent=fields.size("routed_expert_hidden_size", default=0, minimum=0),
    )
    dense = dense_ffn(fields)
    first = first_sparse(fields, 1)
    layers = [
        LayerSpec(full if kind == _FULL else linear, experts if index >= first else dense)
        for index, kind in enumerate(types)
    ]
    return assemble(
        fields,
        layers,
        Defaults(bos=163584, eos=163586, max_position=1_048_576),
        architecture="KimiLinearForCausalLM",
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-5)),
        outer=outer,
        residual_attention=fields.size("attn_res_block_size", default=0, minimum=0),
    )


def _types(fields: Fields, linear: Fields) -> list[str]:
    """The checkpoint numbers its layers from one."""
    count = layer_count(fields)
    full, delta = linear.integers("full_attn_layers"), linear.integers("kda_layers")
    if full is None or delta is None:
        return [_FULL if i and i % 4 == 0 else _LINEAR for i in range(count)]
    if sorted(full + delta) != list(range(1, count + 1)):
        raise linear.error("full_attn_layers", full, f"with kda_layers, every layer from 1 to {count} once")
    return [_FULL if index + 1 in set(full) else _LINEAR for index in range(count)]


def _delta_attention(fields: Fields, linear: Fields) -> AttentionSpec:
    """Per-channel decay (arXiv:2510.26692); q, k and v have the same heads and width."""
    heads = linear.size("num_heads", default=fields.size("linear_num_heads", default=32))
    dim = linear.size("head_dim", default=fields.size("linear_head_dim", default=128))
    kernel = linear.size("short_conv_kernel_size", default=fields.size("linear_conv_kernel_dim", default=4))
    state = LinearStateSpec(
        variant="kda",
        state_elements=heads * dim * dim,
        conv_elements=3 * heads * dim * (kernel - 1),
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        kernel=kernel,
        gate_rank=None if linear.flag("use_full_rank_gate", default=False) else dim,
    )
    return AttentionSpec("linear", heads, heads, dim, dim, dim**-0.5, None, output_gate=True, linear=state)


def _latent_attention(fields: Fields) -> AttentionSpec:
    values = dict(fields.values)
    values.setdefault("q_lora_rank", None)
    plain = Fields(values, fields.model)
    rope = None if fields.flag("mla_use_nope", default=True) else rope_spec(fields, fields.size("qk_rope_head_dim"))
    return replace(read_mla(plain, rope), output_gate=fields.flag("mla_use_output_gate", default=False))
