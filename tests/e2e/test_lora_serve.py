"""`shoal serve --lora`: adapters are chosen by model name over HTTP, at one replica and at a fleet's gateway."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from e2ekit import Running, running, serve_process
from safetensors.torch import save_file

from shoal.engine.options import EngineOptions, LoraModule
from shoal.server.options import ServerOptions

ASK = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def adapter(directory: Path, seed: int) -> Path:
    """For `tiny_llama`'s attention."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for name, outputs in (("q_proj", 48), ("v_proj", 24)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, 48, generator=generator)
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {"sql": adapter(folder / "sql", 1), "org/poem": adapter(folder / "poem", 2)}


@pytest.fixture(scope="module")
def replica(tiny_model: Path, adapters: dict[str, Path]) -> Iterator[Running]:
    options = EngineOptions(
        model=str(tiny_model),
        served_name="tiny",
        num_blocks=200,
        threads=1,
        loras=tuple(LoraModule(name, str(path)) for name, path in adapters.items()),
    )
    with running(options) as found:
        yield found


def start_serve(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shoal.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def texts(client: httpx.Client, names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        answer = client.post("/v1/completions", json=ASK | {"model": name}).json()
        assert answer["model"] == name
        found[name] = answer["choices"][0]["text"]
    return found


def test_each_name_is_a_model(replica: Running) -> None:
    with replica.client() as client:
        cards = client.get("/v1/models").json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("tiny", None),
            ("sql", "tiny"),
            ("org/poem", "tiny"),
        ]
        assert client.get("/v1/models/org/poem").json()["parent"] == "tiny"
        found = texts(client, ("tiny", "sql", "org/poem"))
        assert len(set(found.values())) == 3
        assert texts(client, ("tiny", "sql", "org/poem")) == found, "cached prefixes are an adapter's own"
        chat = {"model": "sql", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
        lines = client.post("/v1/chat/completions", json=chat).text.splitlines()
        assert json.loads(lines[0].removeprefix("data: "))["model"] == "sql"
    replica.check()


def test_an_unknown_adapter_is_not_found(replica: Running) -> None:
    with replica.client() as client:
        answer = client.post("/v1/completions", json=ASK | {"model": "poem"})
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "model_not_found"
        assert "'tiny', 'sql', 'org/poem'" in error["message"]


def test_a_fleet_serves_adapters_and_aliases(
    tiny_model: Path, adapters: dict[str, Path], replica: Running, tmp_path: Path
) -> None:
    loras = [{"name": name, "path": str(path)} for name, path in adapters.items()]
    pool = {"name": "p", "model": str(tiny_model), "served_name": "tiny", "aliases": ["default"]}
    pool |= {"options": {"num_blocks": 100, "loras": loras}, "threads": 1}
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"pools": [pool], "supervisor": {"log_dir": str(tmp_path / "logs")}}))
    with replica.client() as client:
        expected = texts(client, ("tiny", "sql", "org/poem"))
    with serve_process("--config", str(file)) as fleet, httpx.Client(base_url=fleet.url, trust_env=False) as client:
        cards = client.get("/v1/models").json()["data"]
        parents = {card["id"]: card["parent"] for card in cards}
        assert parents == {"tiny": None, "default": None, "sql": "tiny", "org/poem": "tiny"}
        assert texts(client, ("tiny", "sql", "org/poem")) == expected
        assert texts(client, ("default",))["default"] == expected["tiny"]
        assert client.post("/v1/completions", json=ASK | {"model": "poem"}).status_code == 404


def test_keys_and_values_are_handed_over_under_the_same_adapter_only(
    tiny_model: Path, adapters: dict[str, Path]
) -> None:
    """Replicas whose adapters of one name have other contents compute the prompt themselves."""
    prompt = "Once upon a time there was a shoal. " * 3
    ask = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}

    def leg(path: Path) -> contextlib.AbstractContextManager[Running]:
        options = EngineOptions(
            model=str(tiny_model),
            served_name="tiny",
            num_blocks=100,
            threads=1,
            kv_transfer="tcp://127.0.0.1:0",
            loras=(LoraModule("sql", str(path)),),
        )
        return running(options, ServerOptions(port=0, drain_seconds=0, kv_key="shared"))

    def complete(at: Running, model: str, **fields: Any) -> dict[str, Any]:
        with at.client() as client:
            answer: dict[str, Any] = client.post(
                "/v1/completions", json=ASK | {"model": model, "prompt": prompt} | fields
            ).json()
        return answer

    def cached(answer: dict[str, Any]) -> int:
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    other = adapters["org/poem"]
    with leg(adapters["sql"]) as prefill, leg(adapters["sql"]) as alike, leg(other) as unlike:
        whole = complete(prefill, "sql")
        for model, decode, taken in (("sql", alike, True), ("tiny", alike, True), ("sql", unlike, False)):
            params = complete(prefill, model, max_tokens=1, kv_transfer_params=ask)["kv_transfer_params"]
            answer = complete(decode, model, kv_transfer_params=params)
            assert (cached(answer) > 0) == taken
            same = answer["choices"][0]["text"] == whole["choices"][0]["text"]
            assert same == (model == "sql" and taken)


def test_an_adapter_that_cannot_be_used_is_said_at_start(tiny_model: Path, tmp_path: Path) -> None:
    result = start_serve(str(tiny_model), "--lora", f"sql={tmp_path / 'nowhere'}", "--port", "0")
    assert result.returncode == 1
    assert "LoRA adapter 'sql'" in result.stderr
    assert "is not a directory" in result.stderr
    assert "Traceback" not in result.stderr
    result = start_serve(str(tiny_model), "--lora", "sql")
    assert "expected name=directory" in result.stderr
