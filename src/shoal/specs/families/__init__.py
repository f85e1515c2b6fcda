"""One parser a model family, found by `model_type`, or by `architectures[0]` where the type is not known."""

from collections.abc import Callable, Mapping

from shoal.specs.families.gemma3 import parse_gemma3
from shoal.specs.families.llama import parse_llama, parse_mistral
from shoal.specs.families.qwen import parse_qwen2, parse_qwen2_moe, parse_qwen3, parse_qwen3_moe
from shoal.specs.fields import Fields
from shoal.specs.model import ModelSpec

Parser = Callable[[Fields, Fields | None], ModelSpec]
"""(the text model's fields, the fields of the config around it or None) -> spec."""

BY_MODEL_TYPE: Mapping[str, Parser] = {
    "llama": parse_llama,
    "mistral": parse_mistral,
    "qwen2": parse_qwen2,
    "qwen2_moe": parse_qwen2_moe,
    "qwen3": parse_qwen3,
    "qwen3_moe": parse_qwen3_moe,
    "gemma3": parse_gemma3,
    "gemma3_text": parse_gemma3,
}

BY_ARCHITECTURE: Mapping[str, Parser] = {
    "LlamaForCausalLM": parse_llama,
    "MistralForCausalLM": parse_mistral,
    "Qwen2ForCausalLM": parse_qwen2,
    "Qwen2MoeForCausalLM": parse_qwen2_moe,
    "Qwen3ForCausalLM": parse_qwen3,
    "Qwen3MoeForCausalLM": parse_qwen3_moe,
    "Gemma3ForCausalLM": parse_gemma3,
}
