"""Hugging Face ids against a stand-in hub, with the real client."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
from standins import COMMIT, HubHandler, Store, serving, until

from shoal.engine.sources import LocalModel, SourceError, resolve_model

REPO = "tiny-org/tiny-model"
WEIGHTS = random.Random(3).randbytes(24 << 20)
# The client writes to disk in pieces of this size.
CLIENT_CHUNK = 10 << 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"never fetched",
        "README.md": b"never fetched",
    }
    with serving(Store({f"{REPO}/{name}": data for name, data in files.items()}), HubHandler) as store:
        template = store.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", store.url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield store


@pytest.fixture
def environment(hub: Store, tmp_path: Path) -> dict[str, str]:
    """The same settings as `hub` makes in this process, for another one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SHOAL_"))}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return kept | settings | {"SHOAL_HOME": str(tmp_path / "shoal")}


def pull(tmp_path: Path, reference: str = REPO, *, offline: bool = False, refresh: bool = True) -> LocalModel:
    cache = tmp_path / "shoal" / "models"
    return resolve_model(reference, cache, offline=offline, refresh=refresh, verify=refresh)


def test_id_brings_what_is_needed_and_then_works_offline(hub: Store, tmp_path: Path) -> None:
    model = pull(tmp_path)
    assert {p.name for p in model.path.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (model.path / "model.safetensors").read_bytes() == WEIGHTS
    assert {name for name, _ in hub.requests} == {f"{REPO}/{p.name}" for p in model.path.iterdir()}
    requests = len(hub.requests)
    assert pull(tmp_path) == model, "nothing changed on the hub"
    hub.status = 500
    assert pull(tmp_path, refresh=False) == model
    assert pull(tmp_path, offline=True) == model
    assert len(hub.requests) == requests


def test_what_other_tools_downloaded_is_taken_over_offline(hub: Store, tmp_path: Path) -> None:
    huggingface_hub.snapshot_download(
        REPO, endpoint=hub.url, cache_dir=tmp_path / "hf" / "hub", ignore_patterns=["*.bin", "*.md"]
    )
    assert (pull(tmp_path, offline=True).path / "model.safetensors").read_bytes() == WEIGHTS


def test_killed_download_leaves_no_model_and_keeps_whole_files(
    hub: Store, environment: dict[str, str], tmp_path: Path
) -> None:
    hub.hold_after = CLIENT_CHUNK + (2 << 20)
    command = [sys.executable, "-m", "shoal.cli", "pull", REPO]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        incomplete = (tmp_path / "hf").rglob
        until(lambda: any(p.stat().st_size >= CLIENT_CHUNK for p in incomplete("*.incomplete")), "a piece on disk")
        until(lambda: any(incomplete("snapshots/*/tokenizer.json")), "a whole file")
    finally:
        process.kill()
        process.wait(timeout=10)
    with pytest.raises(SourceError, match="not in the cache"):
        pull(tmp_path, offline=True)
    hub.gate.set()
    hub.requests.clear()
    assert (pull(tmp_path).path / "model.safetensors").read_bytes() == WEIGHTS
    assert not hub.fetched(f"{REPO}/tokenizer.json"), "a file that had arrived must not be fetched again"


def test_damaged_file_in_the_hubs_cache_is_fetched_again(hub: Store, tmp_path: Path) -> None:
    weights = pull(tmp_path).path / "model.safetensors"
    weights.resolve().write_bytes(bytes(len(WEIGHTS)))
    pull(tmp_path)
    assert weights.read_bytes() == WEIGHTS


def test_weights_that_are_not_what_the_hub_promises_are_refused(hub: Store, tmp_path: Path) -> None:
    hub.promised[f"{REPO}/model.safetensors"] = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(SourceError, match=r"model\.safetensors arrived with sha256"):
        pull(tmp_path)
    with pytest.raises(SourceError, match="not in the cache"):
        pull(tmp_path, offline=True)


def test_quantization_is_chosen_among_gguf_files(hub: Store, tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        hub.files[f"quants/m/{name}"] = b"GGUF" + name.encode()
    with pytest.raises(SourceError, match="choose one: Q4_K_M, Q8_0"):
        pull(tmp_path, "quants/m")
    assert pull(tmp_path, "quants/m:q8_0").path.read_bytes() == b"GGUFm-Q8_0.gguf"
    assert [name for name, _ in hub.requests] == ["quants/m/m-Q8_0.gguf"]


def test_revision_is_the_commit(hub: Store, tmp_path: Path) -> None:
    assert pull(tmp_path, f"{REPO}@{COMMIT}").path.name == COMMIT


@pytest.mark.parametrize(
    ("reference", "status", "headers", "message"),
    [
        ("tiny-org/absent", None, {}, "there is no model"),
        (f"{REPO}@v9", None, {}, "has no revision 'v9'"),
        (REPO, 403, {"X-Error-Code": "GatedRepo"}, "is gated on the hub; accept its terms at"),
        (REPO, 500, {}, "500"),
        ("a/x..y", None, {}, "a/x..y"),
    ],
)
def test_refusals_say_what_to_do(
    hub: Store, tmp_path: Path, reference: str, status: int | None, headers: dict[str, str], message: str
) -> None:
    hub.status, hub.headers = status, headers
    with pytest.raises(SourceError, match=message):
        pull(tmp_path, reference)


def test_hub_out_of_reach_is_one_line(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "pull", REPO],
        env=environment | {"HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
