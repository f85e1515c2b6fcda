"""The catalogue of models: every name resolves, agrees with the publisher's config, near names are suggested."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.specs import SpecError, UnknownModel, catalog_model, known_models, parameter_counts, parse_config
from shoal.specs.catalog.models import catalog_entry

_MEASURED = [
    "MiniMaxAI/MiniMax-M2.5",
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3.5-397B-A17B",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "moonshotai/Kimi-K2.5",
    "nvidia/DeepSeek-R1-NVFP4",
    "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Llama-3.1-8B-Instruct-FP8",
    "nvidia/Qwen3-32B-NVFP4",
    "openai/gpt-oss-120b",
]


@pytest.mark.parametrize("name", known_models())
def test_every_entry_parses_and_has_a_source(name: str) -> None:
    spec, entry = catalog_model(name), catalog_entry(name)
    assert parameter_counts(spec).total > 1e8
    assert entry.source.source
    assert entry.source.date
    assert entry.source.kind == "published"
    for known in entry.names:
        assert catalog_model(known).layers == spec.layers


@pytest.mark.parametrize("name", _MEASURED)
def test_measured_models_resolve_by_their_ids(name: str) -> None:
    assert catalog_model(name).name == name
    assert catalog_model(name.lower()).layers == catalog_model(name).layers


def test_entries_are_what_the_publishers_configs_say(shared_data: Path) -> None:
    """The catalogue is a copy of facts; here are the facts.

    ModelOpt keeps the way a checkpoint is stored in a file of its own, so only the architecture is compared.
    """
    compared = 0
    for path in sorted((shared_data / "model-configs").glob("*.json")):
        identifier = path.stem.replace("--", "/", 1)
        ours, published = catalog_model(identifier), parse_config(json.loads(path.read_text()), identifier)
        same = {"quantization": None, "eos_token_ids": (), "bos_token_id": None, "model_type": "", "name": ""}
        assert replace(ours, **same) == replace(published, **same), identifier
        compared += 1
    assert compared > 25


def test_qwen35_397b_has_the_parameters_in_its_name() -> None:
    counts = parameter_counts(catalog_model("qwen3.5-397b-a17b"))
    # The name rounds up what the text model and its vision tower have together.
    assert counts.total / 1e9 == pytest.approx(396.3, abs=0.1)
    assert counts.active / 1e9 == pytest.approx(17, abs=0.5)


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(UnknownModel, match=r"'llama-3\.1-7b'.*family the catalogue has.*llama-3\.1-8b"):
        catalog_model("llama-3.1-7b")
    with pytest.raises(UnknownModel, match="a Hugging Face id"):
        catalog_model("zzzzzzzz")


def test_a_users_file_adds_a_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "models:\n"
        "  mine-1b:\n"
        "    ids: [me/Mine-1B]\n"
        "    source: my own\n    date: 2026-01\n    class: calculated\n"
        "    config: {model_type: llama, hidden_size: 64, intermediate_size: 96, vocab_size: 100,\n"
        "             num_hidden_layers: 2, num_attention_heads: 4}\n"
    )
    assert catalog_model("me/mine-1b", [path]).hidden == 64
    assert "mine-1b" in known_models([path])
    with pytest.raises(UnknownModel):
        catalog_model("mine-1b")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    config: {model_type: llama}\n", "class"),
        ("    source: x\n    date: 2026\n    class: published\n", "config"),
        ("    source: x\n    date: 2026\n    class: published\n    confg: {}\n", "confg"),
        ("    source: x\n    date: 2026\n    class: published\n    config: {model_type: llama}\n", "hidden_size"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"models:\n  mine:\n    ids: []\n{body}")
    with pytest.raises(SpecError, match=message) as caught:
        catalog_model("mine", [path])
    assert "mine" in str(caught.value)
