"""Paths used in place, the choice among files, and what is said of a reference that is nothing."""

import json
from pathlib import Path

import pytest

from shoal.engine.sources import SourceError, resolve_model
from shoal.engine.sources.cache import ModelCache, cache_root
from shoal.engine.sources.select import Selection, select_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"w" * 10)
    return model


def test_directory_is_used_in_place(folder: Path, tmp_path: Path) -> None:
    model = resolve_model(str(folder), cache_dir=tmp_path / "cache")
    assert (model.path, model.name, model.kind, model.size_bytes) == (folder, "my-model", "directory", 12)
    assert model.checksum is None
    assert not (tmp_path / "cache").exists()


def test_relative_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert resolve_model("./my-model").path == folder
    assert resolve_model("my-model").path == folder


def test_gguf_file_and_directory_with_one(tmp_path: Path) -> None:
    file = tmp_path / "m.Q8_0.gguf"
    file.write_bytes(b"GGUF....")
    for reference in (file, tmp_path):
        model = resolve_model(str(reference))
        assert (model.path, model.kind, model.name) == (file, "gguf", "m.Q8_0")


def test_catalog_name_wins_over_a_directory_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="not in the cache"):
        resolve_model("smollm2-135m", cache_dir=tmp_path / "cache", offline=True)


def test_missing_shards_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(SourceError, match=r"1 of 2 shards are missing, first model-00002-of-00002\.safetensors"):
        resolve_model(str(folder))
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(SourceError, match="no weight_map"):
        resolve_model(str(folder))


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04")
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "two" / name).write_bytes(b"GGUF")
    with pytest.raises(SourceError, match=r"holds no model; a model directory holds config\.json and"):
        resolve_model(str(tmp_path / "empty"))
    with pytest.raises(SourceError, match="is not a GGUF file"):
        resolve_model(str(tmp_path / "x.gguf"))
    with pytest.raises(SourceError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        resolve_model(str(tmp_path / "two"))
    with pytest.raises(SourceError, match=r"does not exist; did you mean 'x\.gguf'"):
        resolve_model(str(tmp_path / "y.gguf"))


def test_unknown_name_suggests_near_ones_and_says_what_is_accepted() -> None:
    with pytest.raises(SourceError, match=r"did you mean 'smollm2-135m'\?; accepted: a catalog name \(smollm2"):
        resolve_model("smollm-135m")
    with pytest.raises(SourceError, match="Hugging Face id"):
        resolve_model("")


def test_offline_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_OFFLINE", "1")
    with pytest.raises(SourceError, match="offline"):
        resolve_model("smollm2-135m", cache_dir=tmp_path)


def test_cache_root_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/shoal/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/shoal/models")
    monkeypatch.setenv("SHOAL_HOME", "/here")
    assert cache_root() == Path("/here/models")
    assert cache_root(tmp_path) == tmp_path


def test_directory_without_a_readable_manifest_is_not_in_the_cache(tmp_path: Path) -> None:
    entry = tmp_path / "smollm2-135m"
    entry.mkdir()
    (entry / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    for manifest in (None, b"", b"{", b'{"format": 99, "reference": "x", "main": ".", "files": []}'):
        if manifest is not None:
            (entry / "manifest.json").write_bytes(manifest)
        assert ModelCache(tmp_path).load("smollm2-135m") is None
        assert ModelCache(tmp_path).entries() == []


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(SourceError, match=r"cannot be written .*; set SHOAL_HOME"):
        resolve_model("smollm2-135m", cache_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("names", "quantization", "expected"),
    [
        (
            [
                "config.json",
                "model.safetensors",
                "consolidated.safetensors",
                "tokenizer.model",
                "x.bin",
                "onnx/m.json",
            ],
            None,
            Selection(".", ("config.json", "tokenizer.model", "model.safetensors")),
        ),
        (["config.json", "weights.safetensors"], None, Selection(".", ("config.json", "weights.safetensors"))),
        (["config.json", "a.gguf", "mmproj-a.gguf"], None, Selection("a.gguf", ("a.gguf",))),
        (
            ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "m-IQ4_XS.gguf"],
            "q8_0",
            Selection("m-Q8_0-00001-of-00002.gguf", ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")),
        ),
    ],
)
def test_selection(names: list[str], quantization: str | None, expected: Selection) -> None:
    assert select_files("r", names, quantization) == expected


@pytest.mark.parametrize(
    ("names", "quantization", "message"),
    [
        (["config.json", "pytorch_model.bin"], None, "holds neither safetensors .* config.json, pytorch_model.bin"),
        ([], None, "it holds nothing"),
        (["config.json", "model.safetensors"], "Q4_0", "holds no GGUF file"),
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "Q4_K_S", "did you mean 'Q4_K_M'.*it holds Q4_K_M, Q8_0"),
    ],
)
def test_selection_that_is_not_clear(names: list[str], quantization: str | None, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        select_files("r", names, quantization)
