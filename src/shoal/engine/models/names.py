"""What checkpoints call their tensors, and which architectures the engine builds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.specs.model import LayerSpec


@dataclass(frozen=True, slots=True)
class NormNames:
    """A layer's norms in a checkpoint; the `after_` ones stand before each residual add of a sandwich model."""

    attention: str
    ffn: str
    after_attention: str | None = None
    after_ffn: str | None = None


_LLAMA = NormNames("input_layernorm", "post_attention_layernorm")
_GEMMA = NormNames(
    "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
)

ARCHITECTURES: Mapping[str, NormNames] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2MoeForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _LLAMA,
    "DeepseekV2ForCausalLM": _LLAMA,
    "DeepseekV3ForCausalLM": _LLAMA,
    "GptOssForCausalLM": _LLAMA,
}

# Multimodal checkpoints nest the language model, some exports drop the `model.` prefix.
_PREFIXES = re.compile(r"^(?:(?:model|language_model)\.)+")
# Recomputed from the config, or of the towers of a multimodal model.
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|^(?:vision_tower|multi_modal_projector|vision_model|audio_tower)\.")


# Mixtral's own names for what everyone else calls an expert.
_MIXTRAL = re.compile(r"(layers\.\d+)\.block_sparse_moe\.(?:(experts\.\d+)\.(w[123])\.)?")
_MIXTRAL_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_EXPERT = re.compile(r"layers\.\d+\.mlp\.experts\.(\d+)\.(?:gate|up|down)_proj\.(?:weight|bias)$")


def of_an_expert(name: str, layer: LayerSpec) -> bool:
    """Whether a canonical name is that of a tensor of one of the layer's experts."""
    match = _EXPERT.match(name)
    router = layer.ffn.router
    return match is not None and router is not None and int(match[1]) < router.experts


def _mixtral(match: re.Match[str]) -> str:
    layer, expert, part = match.groups()
    return f"{layer}.mlp." + (f"{expert}.{_MIXTRAL_PARTS[part]}." if expert else "")


def canonical(name: str) -> str | None:
    """The name without what nests it (`layers.0.mlp.up_proj.weight`); None for a tensor the engine doesn't use."""
    bare = _MIXTRAL.sub(_mixtral, _PREFIXES.sub("", name))
    return None if _IGNORED.search(bare) else bare
