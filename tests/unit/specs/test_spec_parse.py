"""From config.json to ModelSpec: what is read, what is refused, and what the refusal says."""

import contextlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.specs import (
    InvalidField,
    ModelSpec,
    SpecError,
    UnknownArchitecture,
    UnreadableModel,
    load_model_spec,
    parse_config,
)
from shoal.specs.families import BY_ARCHITECTURE

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "float16",
}


def parse(**changes: Any) -> ModelSpec:
    return parse_config({**LLAMA, **changes}, "tiny")


def test_llama_fields_and_class_defaults() -> None:
    spec = parse()
    attention = spec.layers[0].attention
    assert (spec.vocab, spec.hidden, len(spec.layers), spec.dtype) == (320, 64, 4, "float16")
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.scale) == (4, 2, 16, 0.25)
    assert (spec.norm.eps, spec.bos_token_id, spec.eos_token_ids, spec.tied_embeddings) == (1e-6, 1, (2,), False)
    assert attention.rope is not None
    assert (attention.rope.theta, attention.rope.kind, attention.window) == (10_000.0, "default", None)


def test_stated_null_token_ids_are_none() -> None:
    spec = parse(bos_token_id=None, eos_token_id=None)
    assert (spec.bos_token_id, spec.eos_token_ids) == (None, ())
    assert parse(eos_token_id=[7, 9]).eos_token_ids == (7, 9)


def test_mistral_window_absent_is_4096_and_null_is_none() -> None:
    config = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    windows = [
        parse_config({**config, **extra}, "m").layers[3].attention.window
        for extra in ({}, {"sliding_window": None}, {"sliding_window": 32})
    ]
    assert windows == [4096, None, 32]


def test_qwen2_slides_from_max_window_layers_on() -> None:
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 16, "max_window_layers": 3}
    off = parse_config(config, "q")
    on = parse_config({**config, "use_sliding_window": True}, "q")
    assert [layer.attention.window for layer in off.layers] == [None] * 4
    assert [layer.attention.window for layer in on.layers] == [None, None, None, 16]
    assert on.layers[0].attention.qkv_bias
    assert not on.layers[0].attention.out_bias


def test_gemma3_mixes_bases_and_windows() -> None:
    config = {
        **LLAMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 32,
        "query_pre_attn_scalar": 64,
        "rope_theta": 1e6,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 20,
    }
    spec = parse_config(config, "g")
    local, full = spec.layers[0].attention, spec.layers[5].attention
    assert local.rope is not None
    assert full.rope is not None
    assert (local.window, local.rope.theta, local.rope.kind) == (20, 5e3, "default")
    assert (full.window, full.rope.theta, full.rope.kind, full.rope.factor) == (None, 1e6, "linear", 8.0)
    assert local.scale == full.scale == 64**-0.5
    assert (spec.embedding_scale, spec.norm.plus_one, spec.norm.sandwich) == (8.0, True, True)
    assert spec.tied_embeddings


def test_gemma3_rope_parameters_by_layer_type_mean_the_same() -> None:
    old = {"rope_theta": 1e6, "rope_local_base_freq": 5e3}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        }
    }
    config = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 6}
    assert parse_config({**config, **old}, "g") == parse_config({**config, **new}, "g")


def test_a_wrapper_is_read_for_its_text_model() -> None:
    wrapped = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {k: v for k, v in LLAMA.items() if k not in ("architectures", "torch_dtype")}
        | {"model_type": "gemma3_text"},
        "vision_config": {"hidden_size": 1152},
    }
    spec = parse_config(wrapped, "g")
    assert (spec.architecture, spec.dtype, spec.tied_embeddings) == ("Gemma3ForCausalLM", "bfloat16", False)


def test_unknown_architecture_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        parse_config({"architectures": ["LlamaForCausalLLM"], "model_type": "lama"}, "mine")
    message = str(caught.value)
    assert "mine" in message
    assert "'LlamaForCausalLLM'" in message
    assert "did you mean LlamaForCausalLM" in message
    assert all(name in message for name in BY_ARCHITECTURE)


def test_architecture_decides_where_the_type_is_unknown() -> None:
    assert parse(model_type="my_llama").architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("changes", "field", "accepted"),
    [
        ({"hidden_size": None}, "hidden_size is missing", "integer of 1 or more"),
        ({"hidden_size": "64"}, "hidden_size is '64'", "integer"),
        ({"hidden_size": True}, "hidden_size is True", "integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0", "from 1 to 10000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000", "from 1 to 10000"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3", "a divisor of num_attention_heads (4)"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size is 64", "a multiple of"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1", "above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan", "above 0"),
        ({"torch_dtype": "int8"}, "torch_dtype is 'int8'", "bfloat16"),
        ({"hidden_act": "relu6"}, "hidden_act is 'relu6'", "silu"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'", "true or false"),
        ({"rope_scaling": {"type": "magic"}}, "rope_scaling.type is 'magic'", "yarn"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing", "above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'", "an object"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "short_factor is missing", "a list of 8 numbers"),
        ({"eos_token_id": ["a"]}, "eos_token_id is ['a']", "a list of integers"),
        ({"quantization_config": {"quant_method": "q9"}}, "quant_method is 'q9'", "gptq"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_accepted(
    changes: dict[str, Any], field: str, accepted: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        parse(**changes)
    message = str(caught.value)
    assert message.startswith("tiny: ")
    assert field in message
    assert accepted in message.partition("accepted:")[2]


def test_layer_types_must_fit_the_layers() -> None:
    with pytest.raises(InvalidField, match="num_hidden_layers"):
        parse_config({**LLAMA, "model_type": "qwen3", "layer_types": ["full_attention"]}, "q")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(
    model_type=st.sampled_from(
        ["llama", "qwen2", "gemma3_text", "mixtral", "deepseek_v3", "gpt_oss", "qwen3_5_moe_text"]
    ),
    key=st.sampled_from(
        [
            *sorted(LLAMA),
            "head_dim",
            "rope_scaling",
            "rope_parameters",
            "layer_types",
            "dtype",
            "sliding_window",
            "num_local_experts",
            "q_lora_rank",
            "n_group",
            "quantization_config",
        ]
    ),
    value=_JSON,
)
def test_no_value_of_any_field_escapes_as_a_traceback(model_type: str, key: str, value: Any) -> None:
    config = {**LLAMA, "model_type": model_type, key: value}
    # Any other exception than SpecError fails the test by itself.
    with contextlib.suppress(SpecError):
        assert isinstance(parse_config(config, "fuzzed"), ModelSpec)


def test_spec_hash_survives_pickling() -> None:
    spec = parse()
    assert hash(spec) == hash(parse())
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)  # noqa: S301


def test_load_from_a_directory_or_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model_spec(folder) == load_model_spec(folder / "config.json")
    assert load_model_spec(folder).name == "my-model"


def test_modelopt_sidecar_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    sidecar = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(sidecar))
    stored = load_model_spec(tmp_path).quantization
    assert stored is not None
    assert (stored.method, stored.bits, stored.excluded) == ("nvfp4", 4.5, ("lm_head",))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[]", "must be a JSON object"),
        ("config.json", None, "neither a config.json nor a .gguf"),
        ("model.gguf", "GGUX", "not a GGUF file"),
        ("model.gguf", "GGUF", "truncated"),
        ("model.gguf", "", "can't be read"),
    ],
)
def test_unreadable_files_say_why(tmp_path: Path, name: str, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UnreadableModel, match=reason) as caught:
        load_model_spec(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModel, match="no such file"):
        load_model_spec(tmp_path / "absent")
