"""Llama and Mistral, and so SmolLM2: grouped-query attention, one gated FFN, RMS norms before both."""

from shoal.specs.families.common import Defaults, assemble, dense_ffn, gqa, layer_count, read_heads
from shoal.specs.fields import Fields
from shoal.specs.model import LayerSpec, ModelSpec
from shoal.specs.rope import rope_spec


def parse_llama(fields: Fields, outer: Fields | None) -> ModelSpec:
    """`attention_bias` puts a bias on all four projections, `mlp_bias` on the three of the FFN."""
    heads = read_heads(fields)
    bias = fields.flag("attention_bias", default=False)
    attention = gqa(heads, rope=rope_spec(fields, heads.head_dim), bias=bias)
    ffn = dense_ffn(fields, bias=fields.flag("mlp_bias", default=False))
    layers = [LayerSpec(attention, ffn)] * layer_count(fields)
    return assemble(fields, layers, Defaults(bos=1, eos=2), architecture="LlamaForCausalLM", outer=outer)


def mistral_window(fields: Fields, default: int | None) -> int | None:
    """Null is no window; absent is the class's default."""
    window = fields.optional_size("sliding_window")
    return default if window is None and not fields.stated("sliding_window") else window


def parse_mistral(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Every layer slides over `sliding_window` unless it is null; a config without the field means 4096."""
    heads = read_heads(fields, kv_heads=8)
    attention = gqa(heads, rope=rope_spec(fields, heads.head_dim), window=mistral_window(fields, 4096))
    layers = [LayerSpec(attention, dense_ffn(fields))] * layer_count(fields)
    defaults = Defaults(bos=1, eos=2, max_position=4096 * 32)
    return assemble(fields, layers, defaults, architecture="MistralForCausalLM", outer=outer)
