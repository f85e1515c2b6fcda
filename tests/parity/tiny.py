"""Tiny random-weight checkpoints of every architecture and RoPE variant, made by Transformers itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 211
_COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A config to be filled with random weights."""

    name: str
    config_class: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    """Longest sequence served, where a RoPE variant depends on it."""
    shortest: int = 1
    longest: int = 61
    """Lengths of whole sequences on the same side of every boundary, so that Transformers takes the same path."""

    def config(self) -> Any:
        return getattr(transformers, self.config_class)(**{**_COMMON, **self.changes})

    def model(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
        """The Transformers model, eager attention, with every parameter random: norms and biases too."""
        config = self.config()
        config.initializer_range = 0.2
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("norm.weight", "layernorm.weight", "bias", "sinks")):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.add_(torch.randn_like(buffer) * 0.2)
        return model.to(dtype).eval()


def _rope(name: str, parameters: dict[str, Any], **changes: Any) -> TinyModel:
    lengths = {key: changes.pop(key) for key in ("max_length", "shortest", "longest") if key in changes}
    rope = {"rope_theta": 10_000.0, **parameters}
    return TinyModel(name, "LlamaConfig", {"rope_parameters": rope, **changes}, **lengths)


_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.0 + 0.7 * i for i in range(8)],
    "original_max_position_embeddings": 32,
    "factor": 8.0,
}

ARCHITECTURES = (
    TinyModel("llama", "LlamaConfig"),
    TinyModel("llama-tied", "LlamaConfig", {"tie_word_embeddings": True}),
    TinyModel("llama-bias", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    TinyModel("llama-mha", "LlamaConfig", {"num_key_value_heads": 6}),
    TinyModel("llama-mqa", "LlamaConfig", {"num_key_value_heads": 1}),
    TinyModel("mistral", "MistralConfig", {"sliding_window": None}),
    TinyModel("mistral-window", "MistralConfig", {"sliding_window": 9}),
    TinyModel("qwen2", "Qwen2Config"),
    TinyModel(
        "qwen2-window",
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    ),
    TinyModel("qwen3", "Qwen3Config", {"tie_word_embeddings": True}),
    TinyModel(
        "gemma3",
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
        },
    ),
    TinyModel(
        "gemma3-softcap",
        "Gemma3TextConfig",
        {"sliding_window": 8, "final_logit_softcapping": 4.0, "tie_word_embeddings": True},
    ),
)

ROPES = (
    _rope("rope-linear", {"rope_type": "linear", "factor": 4.0}),
    _rope("rope-dynamic-within", {"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=64),
    _rope(
        "rope-dynamic-beyond",
        {"rope_type": "dynamic", "factor": 4.0},
        max_position_embeddings=32,
        max_length=61,
        shortest=61,
    ),
    _rope(
        "rope-llama3",
        {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    _rope("rope-yarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    _rope(
        "rope-yarn-options",
        {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        },
    ),
    _rope(
        "rope-yarn-attention-factor",
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 0.8,
        },
    ),
    _rope("rope-longrope-short", _LONGROPE, max_length=32, longest=32),
    _rope("rope-longrope-long", _LONGROPE, shortest=33),
)

_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MLA: Mapping[str, Any] = {
    "num_key_value_heads": 6,
    "head_dim": 8,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}

MIXTURES = (
    TinyModel("mixtral", "MixtralConfig", {"num_local_experts": 5, "sliding_window": None}),
    TinyModel("qwen2-moe", "Qwen2MoeConfig", {**_EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 40}),
    TinyModel(
        "qwen3-moe",
        "Qwen3MoeConfig",
        {**_EXPERTS, "num_experts": 6, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    TinyModel(
        "deepseek-v2",
        "DeepseekV2Config",
        {
            **_MLA,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    TinyModel(
        "deepseek-v3",
        "DeepseekV3Config",
        {**_MLA, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    ),
    TinyModel(
        "deepseek-v3-yarn",
        "DeepseekV3Config",
        {
            **_MLA,
            "q_lora_rank": 20,
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
            },
        },
    ),
    TinyModel(
        "gpt-oss",
        "GptOssConfig",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "swiglu_limit": 0.5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
)

ALL = (*ARCHITECTURES, *ROPES, *MIXTURES)


def save_tiny(model: Any, directory: Path, max_shard_size: str = "5GB") -> Path:
    """Write config.json and safetensors as Transformers does."""
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return directory
