"""What checkpoints call their tensors, and which architectures the engine builds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


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
}

# Multimodal checkpoints nest the language model, some exports drop the `model.` prefix.
_PREFIXES = re.compile(r"^(?:(?:model|language_model)\.)+")
# Recomputed from the config, or of the towers of a multimodal model.
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|^(?:vision_tower|multi_modal_projector|vision_model|audio_tower)\.")


def canonical(name: str) -> str | None:
    """The name without what nests it (`layers.0.mlp.up_proj.weight`); None for a tensor the engine doesn't use."""
    bare = _PREFIXES.sub("", name)
    return None if _IGNORED.search(bare) else bare
