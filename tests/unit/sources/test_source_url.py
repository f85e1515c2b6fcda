"""URLs: memory://, file:// and an S3 stand-in; resumption, concurrency, change and damage."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from standins import S3Handler, Store, serving, until

from shoal.engine.sources import SourceError, Transferred, cached_models, resolve_model

GGUF = b"GGUF" + random.Random(7).randbytes(9 << 20)
SHOAL = [sys.executable, "-m", "shoal.cli"]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    s3fs = pytest.importorskip("s3fs")
    store = Store({"models/tiny/m.gguf": GGUF})
    with serving(store, S3Handler):
        for name, value in {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield store
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def directory() -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    memory.pipe("/hub/llama/config.json", b"{}")
    memory.pipe("/hub/llama/model.safetensors", b"s" * 100_000)
    memory.pipe("/hub/llama/pytorch_model.bin", b"never fetched")
    yield "memory://hub/llama"
    memory.rm("/hub", recursive=True)


def test_directory_brings_only_what_is_needed(directory: str, tmp_path: Path) -> None:
    seen: list[Transferred] = []
    model = resolve_model(directory, cache_dir=tmp_path, progress=seen.append)
    assert model.kind == "url"
    assert model.name == "llama"
    assert {p.name for p in model.path.iterdir()} == {"config.json", "model.safetensors", "manifest.json"}
    assert Transferred("fetching model.safetensors", 100_000, 100_000) in seen
    assert not list((tmp_path / ".staging").iterdir())


def test_refresh_fetches_what_changed_and_keeps_the_rest(directory: str, tmp_path: Path) -> None:
    first = resolve_model(directory, cache_dir=tmp_path)
    weights = (first.path / "model.safetensors").stat().st_ino
    fsspec.filesystem("memory").pipe("/hub/llama/config.json", b'{"new": 1}')
    assert resolve_model(directory, cache_dir=tmp_path) == first
    assert (first.path / "config.json").read_bytes() == b"{}"
    second = resolve_model(directory, cache_dir=tmp_path, refresh=True)
    assert (second.path / "config.json").read_bytes() == b'{"new": 1}'
    assert (second.path / "model.safetensors").stat().st_ino == weights
    assert second.checksum != first.checksum


def test_file_url_is_copied_and_checksummed(tmp_path: Path) -> None:
    origin = tmp_path / "m.gguf"
    origin.write_bytes(GGUF)
    model = resolve_model(f"file://{origin}", cache_dir=tmp_path / "cache")
    origin.unlink()
    again = resolve_model(f"file://{origin}", cache_dir=tmp_path / "cache", offline=True)
    assert again == model
    assert again.path.read_bytes() == GGUF
    assert again.checksum == hashlib.sha256(GGUF).hexdigest()


def test_truncated_cached_file_is_fetched_again_and_refused_offline(directory: str, tmp_path: Path) -> None:
    model = resolve_model(directory, cache_dir=tmp_path)
    os.truncate(model.path / "model.safetensors", 99_999)
    with pytest.raises(SourceError, match="has 99999 bytes instead of 100000"):
        resolve_model(directory, cache_dir=tmp_path, offline=True)
    assert (resolve_model(directory, cache_dir=tmp_path).path / "model.safetensors").stat().st_size == 100_000


def test_flipped_byte_is_found_by_verify(directory: str, tmp_path: Path) -> None:
    model = resolve_model(directory, cache_dir=tmp_path)
    weights = model.path / "model.safetensors"
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    with weights.open("r+b") as file:
        file.seek(50_000)
        file.write(b"X")
    os.utime(weights, ns=times)
    with pytest.raises(SourceError, match="sha256"):
        resolve_model(directory, cache_dir=tmp_path, offline=True, verify=True)
    resolve_model(directory, cache_dir=tmp_path, verify=True)
    assert weights.read_bytes() == b"s" * 100_000


def test_flipped_byte_with_a_new_time_is_found_without_verify(directory: str, tmp_path: Path) -> None:
    model = resolve_model(directory, cache_dir=tmp_path)
    (model.path / "model.safetensors").write_bytes(b"X" * 100_000)
    with pytest.raises(SourceError, match="sha256"):
        resolve_model(directory, cache_dir=tmp_path, offline=True)


def test_copied_cache_is_hashed_once_and_then_trusted(directory: str, tmp_path: Path) -> None:
    resolve_model(directory, cache_dir=tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    seen: list[Transferred] = []
    resolve_model(directory, cache_dir=tmp_path / "b", offline=True, progress=seen.append)
    assert any(t.label == "checking model.safetensors" for t in seen)
    seen.clear()
    resolve_model(directory, cache_dir=tmp_path / "b", offline=True, progress=seen.append)
    assert not seen


def test_s3_object(s3: Store, tmp_path: Path) -> None:
    model = resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path)
    assert model.path.read_bytes() == GGUF
    requests = len(s3.requests)
    assert resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path) == model
    assert resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path, refresh=True) == model
    assert len(s3.requests) == requests, "a current copy must not be fetched again"


def test_s3_directory(s3: Store, tmp_path: Path) -> None:
    s3.files |= {"models/dir/config.json": b"{}", "models/dir/model.safetensors": b"w" * 5000}
    model = resolve_model("s3://models/dir/", cache_dir=tmp_path)
    assert (model.path / "model.safetensors").read_bytes() == b"w" * 5000


def killed_pull(s3: Store, tmp_path: Path) -> str:
    """Pull a model, and kill the process with 4 MiB of it on disk."""
    reference = "s3://models/tiny/m.gguf"
    s3.hold_after = 5 << 20
    process = subprocess.Popen([*SHOAL, "pull", reference, "--cache-dir", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: any(p.stat().st_size >= 4 << 20 for p in tmp_path.rglob("*.partial")), "4 MiB on disk")
    finally:
        process.kill()
        process.wait(timeout=10)
    return reference


def test_killed_download_leaves_no_model_and_goes_on(s3: Store, tmp_path: Path) -> None:
    reference = killed_pull(s3, tmp_path)
    assert cached_models(tmp_path) == []
    with pytest.raises(SourceError, match="not in the cache"):
        resolve_model(reference, cache_dir=tmp_path, offline=True)
    s3.gate.set()
    s3.requests.clear()
    assert resolve_model(reference, cache_dir=tmp_path).path.read_bytes() == GGUF
    assert min(s3.fetched("models/tiny/m.gguf")) >= 4 << 20, "what was there must not be fetched again"


def test_ctrl_c_ends_at_once_though_the_store_is_silent(s3: Store, tmp_path: Path) -> None:
    s3.hold_after = 1 << 20
    command = [*SHOAL, "pull", "s3://models/tiny/m.gguf", "--cache-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: s3.requests, "the body is asked for")
        process.send_signal(signal.SIGINT)
        output, message = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert output == ""
    assert message.endswith("interrupted\n")
    assert "Traceback" not in message
    assert cached_models(tmp_path) == []


def test_object_replaced_between_attempts_starts_over(s3: Store, tmp_path: Path) -> None:
    reference = killed_pull(s3, tmp_path)
    s3.files["models/tiny/m.gguf"] = other = b"GGUF" + bytes(len(GGUF) - 4)
    s3.gate.set()
    assert resolve_model(reference, cache_dir=tmp_path).path.read_bytes() == other


def test_two_at_once_fetch_once(s3: Store, tmp_path: Path) -> None:
    s3.hold_after = 1 << 20
    found: list[bytes] = []
    waiting = threading.Event()

    def pull() -> None:
        def progress(state: Transferred) -> None:
            if state.label.startswith("waiting"):
                waiting.set()

        found.append(
            resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path, progress=progress).path.read_bytes()
        )

    threads = [threading.Thread(target=pull, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(20)
    with pytest.raises(SourceError, match="another process has been pulling it"):
        resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path, lock_deadline_s=0.1)
    s3.gate.set()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [GGUF, GGUF]
    starts = s3.fetched("models/tiny/m.gguf")
    assert len(starts) == len(set(starts)), f"some bytes were fetched twice: {starts}"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("memory://nowhere", "does not exist"),
        ("nosuch://x/y", "Protocol not known"),
        ("s3://models/none.gguf", "does not exist"),
        ("s3://models/tiny/readme.txt", "is a file but not"),
    ],
)
def test_errors_name_the_reference(s3: Store, tmp_path: Path, reference: str, message: str) -> None:
    s3.files["models/tiny/readme.txt"] = b"hello"
    with pytest.raises(SourceError, match=message) as caught:
        resolve_model(reference, cache_dir=tmp_path)
    assert repr(reference) in str(caught.value)


def test_store_that_refuses_is_an_error(s3: Store, tmp_path: Path) -> None:
    s3.status = 403
    with pytest.raises(SourceError, match=r"s3://models/tiny/m\.gguf"):
        resolve_model("s3://models/tiny/m.gguf", cache_dir=tmp_path)


def test_lack_of_space_is_said_before_fetching(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(SourceError, match="MB free; free some space or set SHOAL_HOME"):
        resolve_model(directory, cache_dir=tmp_path)
