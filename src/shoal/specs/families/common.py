"""What the parsers of all families share: head geometry, layer types, plain FFNs, the model around the layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.specs.fields import MAX_LAYERS, Fields
from shoal.specs.model import (
    Activation,
    AttentionSpec,
    FfnSpec,
    LayerSpec,
    ModelSpec,
    MtpSpec,
    NormSpec,
)
from shoal.specs.quantization import parse_quantization

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "situ": "situ",
}
DTYPES: Mapping[str, str] = {
    name: word for word in ("bfloat16", "float16", "float32") for name in (word, f"torch.{word}")
}

_QUANTIZATION = ("quantization_config", "compression_config")
"""Where configs say how weights are stored; the second is that of the first compressed-tensors."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The geometry every attention layer starts from."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """A family's own defaults for what a config.json may leave out (its Transformers configuration class)."""

    eps: float = 1e-6
    tied: bool = False
    bos: int | None = None
    eos: int | None = None
    max_position: int = 2048


def read_heads(fields: Fields, *, kv_heads: int | None = None, head_dim: int | None = None) -> Heads:
    """Heads of a grouped-query layer; `kv_heads` and `head_dim` are the family's defaults (None: as many as heads,
    and hidden / heads)."""
    hidden = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    kv = fields.size("num_key_value_heads", default=heads if kv_heads is None else kv_heads)
    if heads % kv:
        raise fields.error("num_key_value_heads", kv, f"a divisor of num_attention_heads ({heads})")
    dim = fields.optional_size("head_dim")
    if dim is None and head_dim is None and hidden % heads:
        raise fields.error(
            "hidden_size", hidden, f"a multiple of num_attention_heads ({heads}) unless head_dim is set"
        )
    return Heads(hidden, heads, kv, dim or head_dim or hidden // heads)


def gqa(heads: Heads, *, bias: bool = False, **changes: Any) -> AttentionSpec:
    """A grouped-query layer scaled by head_dim^-0.5, with what the family changes about it.

    `bias` is one on all four projections.
    """
    base = {
        "kind": "gqa",
        "heads": heads.heads,
        "kv_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "v_head_dim": heads.head_dim,
        "scale": heads.head_dim**-0.5,
        "rope": None,
        "qkv_bias": bias,
        "out_bias": bias,
    }
    return AttentionSpec(**{**base, **changes})


def read_activation(fields: Fields, default: str = "silu") -> Activation:
    return fields.choice("hidden_act", "hidden_activation", options=ACTIVATIONS, default=default)


def dense_ffn(
    fields: Fields, *, bias: bool = False, activation: str = "silu", intermediate: int | None = None
) -> FfnSpec:
    """A gated dense FFN of the config's `intermediate_size`, or of the width given."""
    width = fields.size("intermediate_size") if intermediate is None else intermediate
    return FfnSpec("dense", width, read_activation(fields, activation), bias=bias)


def layer_count(fields: Fields) -> int:
    return fields.size("num_hidden_layers", maximum=MAX_LAYERS)


def first_sparse(fields: Fields, default: int) -> int:
    """Return the index of the first layer that has experts."""
    return fields.size("first_k_dense_replace", default=default, minimum=0, maximum=MAX_LAYERS)


def layer_types(fields: Fields, default: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The type of each layer, as the config lists them or as the family derives them."""
    types = fields.words("layer_types") or tuple(default)
    if len(types) != layer_count(fields):
        raise fields.error("layer_types", types, f"a list of num_hidden_layers ({layer_count(fields)}) words")
    for word in types:
        if word not in known:
            raise fields.error("layer_types", word, "words among " + ", ".join(known))
    return types


def assemble(
    fields: Fields,
    layers: Sequence[LayerSpec],
    defaults: Defaults,
    *,
    architecture: str,
    norm: NormSpec | None = None,
    embedding_scale: float = 1.0,
    final_softcap: float | None = None,
    mtp: MtpSpec | None = None,
    outer: Fields | None = None,
    residual_streams: int = 1,
    residual_attention: int = 0,
) -> ModelSpec:
    """The model around its layers. `outer` is the config a text part is wrapped in and supplies what that omits."""
    around = outer or fields
    dtype_from = fields if fields.get("dtype", "torch_dtype")[1] is not None else around
    quantization = around.section(*_QUANTIZATION) or fields.section(*_QUANTIZATION)
    tied_from = around if around.stated("tie_word_embeddings") else fields
    bos = fields.optional_size("bos_token_id", minimum=0)
    return ModelSpec(
        name=fields.model,
        architecture=architecture,
        model_type=fields.text("model_type", default=architecture),
        vocab=fields.size("vocab_size"),
        hidden=fields.size("hidden_size"),
        layers=tuple(layers),
        norm=norm or NormSpec(fields.number("rms_norm_eps", default=defaults.eps)),
        tied_embeddings=tied_from.flag("tie_word_embeddings", default=defaults.tied),
        max_position=fields.size("max_position_embeddings", default=defaults.max_position),
        dtype=dtype_from.choice("dtype", "torch_dtype", options=DTYPES, default="bfloat16"),
        bos_token_id=defaults.bos if bos is None and not fields.stated("bos_token_id") else bos,
        eos_token_ids=_eos(fields, defaults.eos),
        embedding_scale=embedding_scale,
        final_softcap=final_softcap,
        quantization=parse_quantization(quantization, around) if quantization is not None else None,
        mtp=mtp,
        residual_streams=residual_streams,
        residual_attention=residual_attention,
    )


def _eos(fields: Fields, default: int | None) -> tuple[int, ...]:
    value = fields.values.get("eos_token_id")
    if isinstance(value, list | tuple):
        return fields.integers("eos_token_id") or ()
    token = fields.optional_size("eos_token_id", minimum=0)
    if token is None:
        token = None if fields.stated("eos_token_id") else default
    return () if token is None else (token,)
