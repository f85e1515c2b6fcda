"""One parser a model family, found by `model_type`, or by `architectures[0]` where the type is not known."""

from collections.abc import Callable, Mapping

from shoal.specs.families.deepseek import (
    parse_deepseek_v2,
    parse_deepseek_v3,
    parse_deepseek_v32,
    parse_glm_moe_dsa,
)
from shoal.specs.families.deepseek_v4 import parse_deepseek_v4
from shoal.specs.families.gemma3 import parse_gemma3
from shoal.specs.families.gemma4 import parse_gemma4
from shoal.specs.families.kimi_linear import parse_kimi_linear
from shoal.specs.families.llama import parse_llama, parse_mistral
from shoal.specs.families.llama4 import parse_llama4
from shoal.specs.families.mimo import parse_mimo_v2
from shoal.specs.families.mixtral import parse_gpt_oss, parse_minimax_m2, parse_mixtral
from shoal.specs.families.qwen import parse_qwen2, parse_qwen2_moe, parse_qwen3, parse_qwen3_moe
from shoal.specs.families.qwen35 import parse_qwen3_5_moe
from shoal.specs.fields import Fields
from shoal.specs.model import ModelSpec

Parser = Callable[[Fields, Fields | None], ModelSpec]
"""(the text model's fields, the fields of the config around it or None) -> spec."""

BY_MODEL_TYPE: Mapping[str, Parser] = {
    "deepseek_v2": parse_deepseek_v2,
    "deepseek_v3": parse_deepseek_v3,
    "deepseek_v32": parse_deepseek_v32,
    "deepseek_v4": parse_deepseek_v4,
    "gemma3_text": parse_gemma3,
    "gemma4_text": parse_gemma4,
    "glm_moe_dsa": parse_glm_moe_dsa,
    "gpt_oss": parse_gpt_oss,
    "kimi_k2": parse_deepseek_v3,
    "kimi_linear": parse_kimi_linear,
    "llama": parse_llama,
    "llama4_text": parse_llama4,
    "mimo_v2_flash": parse_mimo_v2,
    "minimax_m2": parse_minimax_m2,
    "mistral": parse_mistral,
    "mixtral": parse_mixtral,
    "qwen2": parse_qwen2,
    "qwen2_moe": parse_qwen2_moe,
    "qwen3": parse_qwen3,
    "qwen3_5_moe_text": parse_qwen3_5_moe,
    "qwen3_moe": parse_qwen3_moe,
}

BY_ARCHITECTURE: Mapping[str, Parser] = {
    "DeepseekV2ForCausalLM": parse_deepseek_v2,
    "DeepseekV3ForCausalLM": parse_deepseek_v3,
    "DeepseekV32ForCausalLM": parse_deepseek_v32,
    "DeepseekV4ForCausalLM": parse_deepseek_v4,
    "Gemma3ForCausalLM": parse_gemma3,
    "Gemma4ForCausalLM": parse_gemma4,
    "GlmMoeDsaForCausalLM": parse_glm_moe_dsa,
    "GptOssForCausalLM": parse_gpt_oss,
    "KimiLinearForCausalLM": parse_kimi_linear,
    "Llama4ForCausalLM": parse_llama4,
    "LlamaForCausalLM": parse_llama,
    "MiMoV2FlashForCausalLM": parse_mimo_v2,
    "MiniMaxM2ForCausalLM": parse_minimax_m2,
    "MistralForCausalLM": parse_mistral,
    "MixtralForCausalLM": parse_mixtral,
    "Qwen2ForCausalLM": parse_qwen2,
    "Qwen2MoeForCausalLM": parse_qwen2_moe,
    "Qwen3ForCausalLM": parse_qwen3,
    "Qwen3MoeForCausalLM": parse_qwen3_moe,
    "Qwen3_5MoeForCausalLM": parse_qwen3_5_moe,
    # A wrapper whose text part doesn't state its own type.
    "Gemma3ForConditionalGeneration": parse_gemma3,
    "Gemma4ForConditionalGeneration": parse_gemma4,
    "Llama4ForConditionalGeneration": parse_llama4,
    "Qwen3_5MoeForConditionalGeneration": parse_qwen3_5_moe,
}
