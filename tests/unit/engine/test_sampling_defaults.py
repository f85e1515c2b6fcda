"""A model's own sampling defaults: read from its files, applied where a request is silent (vllm#11164)."""

import json
from pathlib import Path
from typing import Any

import pytest

from sampling_kit import byte_level_tokenizer
from shoal.engine.errors import InvalidOption
from shoal.engine.llm import LLM
from shoal.engine.options import EngineOptions
from shoal.engine.sampling.defaults import SamplingDefaults, gguf_sampling_defaults, read_generation_config
from shoal.engine.text.tokenizer import load_tokenizer

QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "do_sample": True}


def test_generation_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        json.dumps({**QWEN, "max_new_tokens": 2048, "pad_token_id": 1})
    )
    found = read_generation_config(tmp_path)
    assert found == SamplingDefaults(
        temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, max_new_tokens=2048
    )
    params = found.params()
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.7, 0.8, 20, 1.05)
    assert params.max_tokens == 16


@pytest.mark.parametrize("text", [None, "[1]", "{", '{"temperature": null}'])
def test_absent_or_broken_files_recommend_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert read_generation_config(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "0.6"), ("top_p", 0), ("top_p", 2), ("top_k", 1.5), ("top_k", True)],
)
def test_what_no_request_could_have_is_ignored_with_a_warning(
    tmp_path: Path, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value, "min_p": 0.1}))
    assert read_generation_config(tmp_path) == SamplingDefaults(min_p=0.1)
    assert name in caplog.text


def test_gguf_metadata_is_read() -> None:
    values = {"general.sampling.temp": 0.6, "general.sampling.top_k": 40, "general.sampling.penalty_repeat": 1.1}
    assert gguf_sampling_defaults(values, Path("m.gguf")) == SamplingDefaults(
        temperature=0.6, top_k=40, repetition_penalty=1.1
    )


def test_they_are_kept_with_the_converted_tokenizer(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(byte_level_tokenizer().json)
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (model / "generation_config.json").write_text(json.dumps(QWEN))
    for _ in range(2):
        assert load_tokenizer(model, tmp_path / "cache").meta.sampling_defaults.top_k == 20
    (model / "generation_config.json").write_text(json.dumps({"top_k": 33}))
    assert load_tokenizer(model, tmp_path / "cache").meta.sampling_defaults == SamplingDefaults(top_k=33)


def test_the_option_is_checked() -> None:
    with pytest.raises(InvalidOption, match="generation_config"):
        EngineOptions(model="m", generation_config="always").validate()  # type: ignore[arg-type]


def test_the_offline_engine_uses_them_where_no_params_are_given(tmp_path: Path) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))
    from e2ekit import tiny_llama

    folder = tiny_llama(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.0}))
    with LLM(str(folder), num_blocks=64, threads=1) as llm:
        assert llm.default_params().temperature == 0.0
        silent = llm.generate(["ab"], use_tqdm=False)[0].outputs[0].token_ids
        assert silent == llm.generate(["ab"], llm.default_params(), use_tqdm=False)[0].outputs[0].token_ids
    with LLM(str(folder), num_blocks=64, threads=1, generation_config="none") as llm:
        assert llm.default_params().temperature == 1.0
