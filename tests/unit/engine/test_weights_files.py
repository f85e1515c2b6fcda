"""Which files of a folder are the model: GGUF in several files, GGUF beside a config.json, weights stored twice."""

import json
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shoal.engine.options import default_name
from shoal.engine.sources import SourceError, resolve_model
from shoal.engine.weights import WeightsError, open_weights
from shoal.specs import UnreadableModel
from shoal.specs.gguf_header import read_gguf_header

TENSORS = {
    "token_embd.weight": np.arange(64, dtype=np.float32).reshape(8, 8),
    "blk.0.attn_q.weight": np.arange(64, 128, dtype=np.float32).reshape(8, 8),
    "blk.0.ffn_norm.weight": np.ones(8, dtype=np.float32),
    "output_norm.weight": np.full(8, 2, dtype=np.float32),
    "output.weight": np.ones((8, 8), dtype=np.float32),
}


def write(path: Path, names: Sequence[str], *, number: int = 0, files: int = 1) -> Path:
    """A tiny GGUF file; of several, as llama.cpp's gguf-split writes them: the model's metadata in the first."""
    writer = gguf.GGUFWriter(path, "llama")
    if number == 0:
        writer.add_head_count(2)
    if files > 1:
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", files)
    for name in names:
        writer.add_tensor(name, TENSORS[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_model_in_several_files_is_one_model(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    names, folder = list(TENSORS), tmp_path / "split"
    folder.mkdir()
    whole = open_weights(write(tmp_path / "whole" / "tiny.gguf", names))
    paths = [
        write(folder / f"tiny-{n + 1:05}-of-00003.gguf", names[2 * n : 2 * n + 2], number=n, files=3)
        for n in range(3)
    ]
    for given in (paths[0], paths[2], folder):
        found = resolve_model(str(given))
        assert (found.path, found.name, found.kind) == (paths[0], "tiny", "gguf")
        assert found.size_bytes == sum(path.stat().st_size for path in paths)
    for given in (paths[0], paths[1], folder):
        parts = open_weights(given)
        assert set(parts.names()) == set(whole.names())
        for name in whole.names():
            assert torch.equal(parts.read(name), whole.read(name))
    assert default_name(str(paths[0])) == "tiny"
    paths[1].unlink()
    with pytest.raises(SourceError, match=r"1 of its 3 files are missing, first tiny-00002-of-00003\.gguf"):
        resolve_model(str(paths[0]))
    with pytest.raises(WeightsError, match="missing"):
        open_weights(paths[0])


def test_a_file_of_several_under_another_name_says_so(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnreadableModel, match="one of 2 files"):
        read_gguf_header(path)


def test_a_gguf_file_beside_a_config_is_the_model(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").symlink_to(smollm2_path)
    (tmp_path / "mmproj-m.gguf").write_bytes(b"GGUF")
    found = resolve_model(str(tmp_path))
    assert found.kind == "gguf"
    assert found.path.name == "m.gguf"


def test_safetensors_beside_a_config_come_before_gguf(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert resolve_model(str(tmp_path)).kind == "directory"


@pytest.mark.parametrize(
    "name", ["consolidated.safetensors", "consolidated-00001-of-00001.safetensors", "x.safetensors"]
)
def test_weights_stored_twice_are_read_once(tmp_path: Path, name: str) -> None:
    """vllm#40765: the same weights under a vendor's names."""
    save_file({"model.a": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"layers.a": torch.zeros(2), "model.a": torch.zeros(2)}, tmp_path / name)
    source = open_weights(tmp_path)
    assert list(source.names()) == ["model.a"]
    assert source.read("model.a").tolist() == [1, 1]


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    save_file({"model.a": torch.ones(2)}, tmp_path / "model-00001-of-00001.safetensors")
    save_file({"model.a": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"model.a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_weights(tmp_path).read("model.a").tolist() == [1, 1]
