"""From GGUF metadata to `ModelSpec`, by way of the config.json fields that say the same.

Keys are those of the GGUF specification (ggml `docs/gguf.md`) and llama.cpp's converter. The spec describes the
model in Hugging Face's convention; what the converter did to the tensors (Llama's q and k rows permuted, Gemma's
norm weights plus one) is undone by whoever reads them.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.specs.errors import UnknownArchitecture, UnreadableModel
from shoal.specs.fields import Fields
from shoal.specs.gguf_header import GgufHeader, LongArray, read_gguf_header
from shoal.specs.model import AttentionSpec, LayerSpec, ModelSpec, QuantizationSpec, RopeSpec
from shoal.specs.parse import parse_config

# GGUF architecture -> (model_type, architectures[0]).
_ARCHITECTURES: Mapping[str, tuple[str, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
# llama.cpp writes no pattern for Gemma 3 and assumes every sixth layer is full.
_GEMMA3_PATTERN = 6
# The 27B model is the one whose scores are scaled by hidden / heads instead of the head's width; llama.cpp tells it
# by its depth, since the metadata don't say.
_GEMMA3_27B_LAYERS = 62


def load_gguf_spec(path: str | Path) -> ModelSpec:
    """The model in a GGUF file, llama3 frequency factors included."""
    header = read_gguf_header(path)
    return spec_from_gguf(header, _rope_factors(Path(path), header))


def spec_from_gguf(metadata: GgufHeader, rope_factors: tuple[float, ...] = ()) -> ModelSpec:
    """The model a GGUF header describes. `dtype` is float32: dequantized weights have no dtype of their own.

    `rope_factors` are the values of the tensor `rope_freqs.weight`, one divisor a rotated pair, where there is one:
    it is how llama.cpp stores llama3 scaling.

    Raises UnknownArchitecture, or InvalidField naming the GGUF key's config.json counterpart.
    """
    fields = Fields(metadata.values, metadata.name)
    arch = fields.text("general.architecture")
    if arch not in _ARCHITECTURES:
        raise UnknownArchitecture(metadata.name, arch or "(no general.architecture)", _ARCHITECTURES)
    config = _config(Fields(_strip(metadata.values, arch), metadata.name, f"{arch}."), arch, metadata)
    spec = parse_config(config, metadata.name)
    if rope_factors:
        spec = _with_rope_factors(spec, rope_factors)
    return replace(spec, quantization=_quantization(metadata))


def _strip(values: Mapping[str, object], arch: str) -> dict[str, object]:
    prefix = f"{arch}."
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _config(keys: Fields, arch: str, metadata: GgufHeader) -> dict[str, object]:
    """The config.json that the metadata amount to."""
    model_type, architecture = _ARCHITECTURES[arch]
    whole = Fields(metadata.values, metadata.name)
    heads = keys.size("attention.head_count")
    hidden = keys.size("embedding_length")
    head_dim = keys.optional_size("attention.key_length")
    if head_dim is None:
        head_dim = keys.optional_size("rope.dimension_count") if arch == "llama" else None
    config: dict[str, object] = {
        "model_type": model_type,
        "architectures": [architecture],
        "dtype": "float32",
        "vocab_size": _vocab(keys, metadata),
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", default=heads),
        "head_dim": head_dim or hidden // heads,
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.required_number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in metadata.tensors,
        "bos_token_id": whole.optional_size("tokenizer.ggml.bos_token_id", minimum=0),
        "eos_token_id": _eos(whole),
    }
    config["rope_theta"] = keys.number("rope.freq_base", default=10_000.0)
    config["rope_scaling"] = _rope_scaling(keys)
    if arch == "gemma3":
        config.update(_gemma3(keys, hidden, heads, head_dim or 256))
    elif arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in metadata.tensors
    return config


def _gemma3(keys: Fields, hidden: int, heads: int, head_dim: int) -> dict[str, object]:
    deep = keys.size("block_count") == _GEMMA3_27B_LAYERS
    pattern = keys.values.get("attention.sliding_window_pattern")
    return {
        "rope_theta": keys.number("rope.freq_base", default=1_000_000.0),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", default=10_000.0),
        "sliding_window": keys.size("attention.sliding_window", default=4096),
        "sliding_window_pattern": pattern if isinstance(pattern, int) else _GEMMA3_PATTERN,
        "query_pre_attn_scalar": hidden // heads if deep else head_dim,
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
    }


def _rope_scaling(keys: Fields) -> dict[str, object] | None:
    kind = keys.text("rope.scaling.type", default="none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise keys.error("rope.scaling.type", kind, "none, linear or yarn")
    scaling: dict[str, object] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor", default=1.0)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.optional_size("rope.scaling.original_context_length")
        scaling["beta_fast"] = keys.number("rope.scaling.yarn_beta_fast")
        scaling["beta_slow"] = keys.number("rope.scaling.yarn_beta_slow")
    return scaling


def _vocab(keys: Fields, metadata: GgufHeader) -> int:
    embedding = metadata.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    stated = keys.optional_size("vocab_size")
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if stated is None and isinstance(tokens, LongArray):
        return tokens.length
    if stated is None and isinstance(tokens, tuple):
        return len(tokens)
    if stated is None:
        raise keys.error("vocab_size", None, "an integer, or a tokenizer.ggml.tokens table")
    return stated


def _eos(whole: Fields) -> list[int] | None:
    """End-of-sequence and, where the file names one, end-of-turn."""
    tokens = [whole.optional_size(f"tokenizer.ggml.{kind}_token_id", minimum=0) for kind in ("eos", "eot")]
    return list(dict.fromkeys(token for token in tokens if token is not None)) or None


def _with_rope_factors(spec: ModelSpec, factors: tuple[float, ...]) -> ModelSpec:
    """llama3 scaling as a table: frequencies divided pair by pair, which is longrope with one list and factor 1."""

    def changed(attention: AttentionSpec) -> AttentionSpec:
        rope = attention.rope
        if rope is None:
            return attention
        if len(factors) != rope.dim // 2:
            raise UnreadableModel(
                spec.name, f"rope_freqs.weight has {len(factors)} values; accepted: {rope.dim // 2}"
            )
        table: dict[str, Any] = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        scaled: RopeSpec = replace(rope, kind="longrope", original_max_position=rope.max_position, **table)
        return replace(attention, rope=scaled)

    layers = tuple(LayerSpec(changed(layer.attention), layer.ffn) for layer in spec.layers)
    return replace(spec, layers=layers)


def _rope_factors(path: Path, header: GgufHeader) -> tuple[float, ...]:
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is None:
        return ()
    if tensor.kind != "F32":
        raise UnreadableModel(path, f"rope_freqs.weight is of type {tensor.kind}; accepted: F32")
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        values: tuple[float, ...] = struct.unpack(f"<{tensor.size_bytes // 4}f", file.read(tensor.size_bytes))
    return values


def _quantization(metadata: GgufHeader) -> QuantizationSpec | None:
    """Mean bits over the quantized tensors, embeddings included; norms are kept in F32."""
    plain = {"F32", "F16", "BF16", "F64"}
    packed = [tensor for tensor in metadata.tensors.values() if tensor.kind not in plain]
    if not packed:
        return None
    elements = sum(math.prod(tensor.shape) for tensor in packed)
    bits = 8 * sum(tensor.size_bytes for tensor in packed) / elements
    return QuantizationSpec("gguf", bits)
