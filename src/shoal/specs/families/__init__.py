"""One parser a model family, found by `model_type`, or by `architectures[0]` where the type is not known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Family:
    """A parser and the names that configs are told by."""

    parser: Parser
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    """Those of wrappers too, whose text part doesn't state its own type."""


FAMILIES = (
    Family(parse_deepseek_v2, ("deepseek_v2",), ("DeepseekV2ForCausalLM",)),
    Family(parse_deepseek_v3, ("deepseek_v3", "kimi_k2"), ("DeepseekV3ForCausalLM",)),
    Family(parse_deepseek_v32, ("deepseek_v32",), ("DeepseekV32ForCausalLM",)),
    Family(parse_deepseek_v4, ("deepseek_v4",), ("DeepseekV4ForCausalLM",)),
    Family(parse_gemma3, ("gemma3_text",), ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")),
    Family(parse_gemma4, ("gemma4_text",), ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")),
    Family(parse_glm_moe_dsa, ("glm_moe_dsa",), ("GlmMoeDsaForCausalLM",)),
    Family(parse_gpt_oss, ("gpt_oss",), ("GptOssForCausalLM",)),
    Family(parse_kimi_linear, ("kimi_linear",), ("KimiLinearForCausalLM",)),
    Family(parse_llama, ("llama",), ("LlamaForCausalLM",)),
    Family(parse_llama4, ("llama4_text",), ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")),
    Family(parse_mimo_v2, ("mimo_v2_flash",), ("MiMoV2FlashForCausalLM",)),
    Family(parse_minimax_m2, ("minimax_m2",), ("MiniMaxM2ForCausalLM",)),
    Family(parse_mistral, ("mistral",), ("MistralForCausalLM",)),
    Family(parse_mixtral, ("mixtral",), ("MixtralForCausalLM",)),
    Family(parse_qwen2, ("qwen2",), ("Qwen2ForCausalLM",)),
    Family(parse_qwen2_moe, ("qwen2_moe",), ("Qwen2MoeForCausalLM",)),
    Family(parse_qwen3, ("qwen3",), ("Qwen3ForCausalLM",)),
    Family(parse_qwen3_moe, ("qwen3_moe",), ("Qwen3MoeForCausalLM",)),
    Family(
        parse_qwen3_5_moe, ("qwen3_5_moe_text",), ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    ),
)
BY_MODEL_TYPE: Mapping[str, Parser] = {name: family.parser for family in FAMILIES for name in family.model_types}
BY_ARCHITECTURE: Mapping[str, Parser] = {
    name: family.parser for family in FAMILIES for name in family.architectures
}
