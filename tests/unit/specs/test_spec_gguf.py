"""GGUF headers: read whole, refused where they aren't, and the model that they describe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.specs import InvalidField, UnknownArchitecture, UnreadableModel, load_model_spec, parameter_counts
from shoal.specs.gguf_header import LongArray, read_gguf_header
from shoal.specs.gguf_metadata import spec_from_gguf

gguf = pytest.importorskip("gguf")

_SIZES: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 6,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def write(path: Path, arch: str, sizes: dict[str, Any], tensors: dict[str, tuple[int, ...]] | None = None) -> Path:
    """A small file by ggml's own writer."""
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in sizes.items():
        if isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_string(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(5000)])
    writer.add_eos_token_id(7)
    for name, shape in (tensors or {"token_embd.weight": (5000, 64)}).items():
        writer.add_tensor(name, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_llama_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", "llama", {**_SIZES, "rope.freq_base": 5000.0, "rope.dimension_count": 16})
    spec = load_model_spec(path)
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert (spec.architecture, spec.hidden, len(spec.layers), spec.vocab) == ("LlamaForCausalLM", 64, 6, 5000)
    assert (rope.theta, rope.dim, spec.tied_embeddings, spec.eos_token_ids) == (5000.0, 16, True, (7,))
    assert spec.quantization is None


def test_an_output_tensor_unties_and_rope_factors_are_a_table(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (5000, 64), "output.weight": (5000, 64), "rope_freqs.weight": (8,)}
    rope = load_model_spec(write(tmp_path / "t.gguf", "llama", _SIZES, tensors)).layers[0].attention.rope
    assert rope is not None
    assert (rope.kind, rope.attention_factor) == ("longrope", 1.0)
    assert rope.short_factor == rope.long_factor == tuple(float(i) for i in range(8))


@pytest.mark.parametrize(("arch", "norm"), [("qwen2", None), ("qwen3", "head")])
def test_qwen(tmp_path: Path, arch: str, norm: str | None) -> None:
    attention = load_model_spec(write(tmp_path / "q.gguf", arch, _SIZES)).layers[0].attention
    assert (attention.qk_norm, attention.head_dim, attention.qkv_bias) == (norm, 16, arch == "qwen2")


@pytest.mark.parametrize(("layers", "scalar"), [(6, 32), (62, 16)])
def test_gemma3_pattern_base_and_scale(tmp_path: Path, layers: int, scalar: int) -> None:
    sizes = {
        **_SIZES,
        "block_count": layers,
        "attention.key_length": 32,
        "attention.sliding_window": 20,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    spec = load_model_spec(write(tmp_path / "g.gguf", "gemma3", sizes))
    local, full = spec.layers[4].attention, spec.layers[5].attention
    assert local.rope is not None
    assert full.rope is not None
    assert (local.window, full.window, local.rope.theta, full.rope.theta) == (20, None, 1e4, 1e6)
    assert (local.rope.kind, full.rope.factor) == ("default", 8.0)
    assert full.scale == scalar**-0.5


def test_long_tables_are_skipped_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", "llama", _SIZES)
    short, whole = read_gguf_header(path), read_gguf_header(path, tables=True)
    assert short.values["tokenizer.ggml.tokens"] == LongArray(5000)
    assert whole.values["tokenizer.ggml.tokens"] == tuple(f"t{i}" for i in range(5000))


def test_tensor_offsets_are_those_of_the_gguf_library(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", "llama", _SIZES, {"token_embd.weight": (50, 64), "a": (3,), "b": (2, 5, 7)})
    ours = read_gguf_header(path).tensors
    reader = gguf.GGUFReader(str(path))
    theirs = {t.name: (tuple(reversed(t.shape.tolist())), t.data_offset, t.n_bytes) for t in reader.tensors}
    assert {name: (t.shape, t.offset, t.size_bytes) for name, t in ours.items()} == theirs


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", "llama", _SIZES, {"token_embd.weight": (5, 64)})
    content = path.read_bytes()
    for cut in sorted({*range(1, 400, 7), *range(400, len(content), len(content) // 50), len(content) - 1}):
        path.write_bytes(content[:cut])
        with pytest.raises(UnreadableModel):
            read_gguf_header(path)


def test_unknown_architecture_and_missing_key(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitecture, match=r"'rwkv9'.*known: gemma3, llama, qwen2, qwen3"):
        load_model_spec(write(tmp_path / "u.gguf", "rwkv9", _SIZES))
    partial = {key: value for key, value in _SIZES.items() if key != "embedding_length"}
    with pytest.raises(InvalidField, match=r"llama\.embedding_length is missing"):
        load_model_spec(write(tmp_path / "m.gguf", "llama", partial))
    with pytest.raises(InvalidField, match=r"rope\.scaling\.type is 'su'"):
        load_model_spec(write(tmp_path / "s.gguf", "llama", {**_SIZES, "rope.scaling.type": "su"}))


@pytest.mark.realmodel
def test_smollm2_is_what_its_publisher_says(smollm2_path: Path) -> None:
    spec = spec_from_gguf(read_gguf_header(smollm2_path))
    attention = spec.layers[0].attention
    assert (attention.heads, attention.kv_heads, attention.head_dim, len(spec.layers)) == (9, 3, 64, 30)
    assert parameter_counts(spec).total == 134_515_008
    header = read_gguf_header(smollm2_path)
    assert parameter_counts(spec).total == sum(_elements(t.shape) for t in header.tensors.values())


@pytest.mark.realmodel
def test_gemma3_270m_holds_the_tensors_that_are_counted(gemma3_path: Path) -> None:
    header = read_gguf_header(gemma3_path)
    spec = spec_from_gguf(header)
    assert [layer.attention.window for layer in spec.layers] == ([512] * 5 + [None]) * 3
    assert parameter_counts(spec).total == sum(_elements(t.shape) for t in header.tensors.values())


def _elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))
