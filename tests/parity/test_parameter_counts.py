"""Parameter counts, KV sizes and attention semantics of every published config, against Transformers and the notes.

Transformers builds each model on the meta device, without memory. A config it can't build is held to published
totals instead.
"""

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.plan.kv import kv_bytes_per_token, sequence_curve
from shoal.specs import ModelSpec, parameter_counts, parse_config, tensor_groups

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_CONFIGS = Path(__file__).parents[2].parent / "shared" / "data" / "model-configs"
_NAMES = sorted(path.stem for path in _CONFIGS.glob("*.json"))

# Kimi-K2 is DeepSeek-V3 under a type of its own that only remote code knows.
_SAME_AS = {"kimi_k2": "deepseek_v3"}
# Activation, latent experts and block residuals that Transformers 5.24 doesn't have.
_NOT_BUILT = {"moonshotai--Kimi-K3"}


def _config(name: str) -> dict[str, Any]:
    path = _CONFIGS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no reference configs at {_CONFIGS}")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _meta(config: Mapping[str, Any]) -> Any:
    """The text model on the meta device."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    outer = copy.deepcopy(dict(config))
    text = outer.get("text_config", outer)
    if text is not outer and "tie_word_embeddings" in outer:
        text.setdefault("tie_word_embeddings", outer["tie_word_embeddings"])
    for key in ("quantization_config", "auto_map"):
        text.pop(key, None)
    model_type = text.pop("model_type")
    built = CONFIG_MAPPING[_SAME_AS.get(model_type, model_type)].from_dict(text)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(built)


@pytest.mark.skipif(not _NAMES, reason=f"no reference configs at {_CONFIGS}")
@pytest.mark.parametrize("name", [name for name in _NAMES if name not in _NOT_BUILT])
def test_published_config_is_what_transformers_builds(name: str) -> None:
    config = _config(name)
    spec, model = parse_config(config, name), _meta(config)
    assert parameter_counts(spec).total == sum(parameter.numel() for parameter in model.parameters())
    _same_shapes(spec, model)
    _same_attention(spec, model)


def _same_shapes(spec: ModelSpec, model: Any) -> None:
    """Elements of every layer, one by one, and not only their sum."""
    ours = [0] * len(spec.layers)
    for group in tensor_groups(spec):
        for index in group.layers if group.parameter else ():
            ours[index] += group.elements * group.experts
    theirs = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.model.layers]
    assert ours == theirs


def _same_attention(spec: ModelSpec, model: Any) -> None:
    for layer, built in zip(spec.layers, model.model.layers, strict=True):
        module = getattr(built, "self_attn", None)
        if module is None or layer.attention.kind == "linear":
            assert layer.attention.kind == "linear"
            continue
        assert layer.attention.scale == pytest.approx(module.scaling, rel=1e-12)
        # Some modules keep the window, the others (Mistral, Mixtral) read the config when they run.
        uniform = getattr(model.config, "sliding_window", None) or None
        assert layer.attention.window == getattr(module, "sliding_window", uniform)
        assert layer.attention.sinks == (getattr(module, "sinks", None) is not None)


# Totals and active (without the input embedding, as the table has them), in billions; KV bytes a token in bf16.
_PUBLISHED = {
    "meta-llama--Meta-Llama-3.1-8B": (8.03, None, 131072),
    "meta-llama--Meta-Llama-3.1-70B": (70.55, None, 327680),
    "meta-llama--Meta-Llama-3.1-405B": (405.9, None, 516096),
    "Qwen--Qwen3-8B": (8.19, None, 147456),
    "Qwen--Qwen3-32B": (32.8, None, 262144),
    "Qwen--Qwen3-30B-A3B": (30.5, 3.04, 98304),
    "Qwen--Qwen3-235B-A22B": (235, 21.6, 192512),
    "mistralai--Mixtral-8x7B-v0.1": (46.7, 12.8, 131072),
    "deepseek-ai--DeepSeek-V3": (671, 36.6, 70272),
    "deepseek-ai--DeepSeek-R1": (671, 36.6, 70272),
    "moonshotai--Kimi-K2-Instruct": (1026, 31.7, 70272),
    "openai--gpt-oss-20b": (20.9, 3.6, 24576),
    "openai--gpt-oss-120b": (116.8, 5.1, 36864),
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (401, 16.2, 49152),
    "MiniMaxAI--MiniMax-M2.5": (229, 10.4, 253952),
    # The published checkpoint's size in mxfp4 and bf16 is 1.56 TB, from which this total follows.
    "moonshotai--Kimi-K3": (2779, None, 24 * 576 * 2),
}


@pytest.mark.parametrize("name", sorted(_PUBLISHED))
def test_published_totals_and_kv(name: str) -> None:
    total, active, kv = _PUBLISHED[name]
    spec = parse_config(_config(name), name)
    counts = parameter_counts(spec)
    assert counts.total / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:
        assert counts.active_without_embedding / 1e9 == pytest.approx(active, rel=0.01)
    assert kv_bytes_per_token(spec) == kv


@pytest.mark.parametrize(
    ("name", "layers", "per_layer", "bound"),
    [
        ("openai--gpt-oss-20b", 12, 2 * 8 * 64 * 2, 128),
        ("openai--gpt-oss-120b", 18, 2 * 8 * 64 * 2, 128),
        ("meta-llama--Llama-4-Maverick-17B-128E-Instruct", 36, 2 * 8 * 128 * 2, 8192),
    ],
)
def test_local_layers_stop_growing(name: str, layers: int, per_layer: int, bound: int) -> None:
    spec = parse_config(_config(name), name)
    full = kv_bytes_per_token(spec)
    for context in (1, bound - 1, bound, bound + 1, 40 * bound):
        expected = context * full + layers * per_layer * min(context, bound)
        assert sequence_curve(spec).bytes(context) == expected


_TINY: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"head_dim": 24, "sliding_window": 8},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "gemma3_text": {"head_dim": 32, "num_hidden_layers": 7, "query_pre_attn_scalar": 40, "sliding_window": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 24,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
        "head_dim": 24,
    },
    "deepseek_v2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 24,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "rope_scaling": {
            "type": "yarn",
            "factor": 8.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
            "original_max_position_embeddings": 64,
        },
    },
    "gpt_oss": {"num_local_experts": 4, "head_dim": 16, "sliding_window": 8, "num_experts_per_tok": 2},
    "kimi_linear": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 5,
        "linear_attn_config": {"num_heads": 3, "head_dim": 8, "short_conv_kernel_size": 4},
    },
}


@pytest.mark.parametrize("model_type", sorted(_TINY))
def test_tiny_config_of_each_family(model_type: str) -> None:
    config = {
        "model_type": model_type,
        "vocab_size": 160,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        **_TINY[model_type],
    }
    spec, model = parse_config(config, "tiny"), _meta(config)
    assert parameter_counts(spec).total == sum(parameter.numel() for parameter in model.parameters())
    _same_shapes(spec, model)
    _same_attention(spec, model)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_FACTORS = [1.0 + 0.1 * i for i in range(6)]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5000.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5000.0},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
        {"rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 64}},
        {"rope_scaling": _YARN},
        {"rope_scaling": {**_YARN, "attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2, "truncate": False}},
        {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
        {"rope_parameters": {**_YARN, "rope_theta": 9000.0}},
        {
            "rope_scaling": {"rope_type": "longrope", "short_factor": _FACTORS, "long_factor": _FACTORS},
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_rope_factors_are_those_of_transformers(rope: dict[str, Any]) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 160,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        **rope,
    }
    spec = parse_config(config, "tiny").layers[0].attention.rope
    rotary = _meta(config).model.rotary_emb
    known = rotary.config.rope_parameters
    assert spec is not None
    assert spec.kind == known["rope_type"]
    assert spec.theta == known["rope_theta"]
    assert spec.dim == 2 * rotary.inv_freq.shape[0]
    assert (spec.attention_factor or 1.0) == pytest.approx(rotary.attention_scaling, rel=1e-12)
    if "original_max_position_embeddings" in known:
        assert spec.original_max_position == known["original_max_position_embeddings"]
