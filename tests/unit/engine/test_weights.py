"""Weight files: what is read, what is refused and in which words."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.direct import CPU, Direct
from parity.tiny import TinyModel, save_tiny
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.engine.models.build import UnsupportedModel, build_model
from shoal.engine.weights import WeightsError, open_weights
from shoal.specs import load_model_spec

IDS = list(range(3, 40))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_tiny(TinyModel("llama", "LlamaConfig").model(), tmp_path)


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return save_tiny(TinyModel("tied", "LlamaConfig", {"tie_word_embeddings": True}).model(), tmp_path)


def _edit(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def _load(directory: Path):
    model = build_model(load_model_spec(directory), torch.float32, CPU)
    model.load(open_weights(directory).tensors())
    return model


def _logits(directory: Path) -> torch.Tensor:
    return Direct.open(directory).run(IDS, len(IDS))


def test_shards_equal_one_file(tmp_path: Path) -> None:
    model = TinyModel("llama", "LlamaConfig").model()
    one, many = save_tiny(model, tmp_path / "one"), save_tiny(model, tmp_path / "many", max_shard_size="40KB")
    assert len(list(many.glob("*.safetensors"))) > 2
    assert sorted(open_weights(one).names()) == sorted(open_weights(many).names())
    assert torch.equal(_logits(one), _logits(many))


def test_shapes_are_known_without_reading(checkpoint: Path) -> None:
    source = open_weights(checkpoint)
    assert source.shape("model.embed_tokens.weight") == (211, 48)
    with pytest.raises(WeightsError, match="nope"):
        source.shape("nope")


@pytest.mark.parametrize("kept", [4, 200, -1])
def test_truncated_file(checkpoint: Path, kept: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors: .*cut short"):
        open_weights(checkpoint)


def test_file_of_another_kind(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 20) + b"this is not a header" + bytes(100))
    with pytest.raises(WeightsError, match="header is not readable"):
        open_weights(checkpoint)


def test_missing_shard(tmp_path: Path) -> None:
    path = save_tiny(TinyModel("llama", "LlamaConfig").model(), tmp_path, max_shard_size="40KB")
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(WeightsError, match=rf"1 of \d+ shards are missing: {gone.name}"):
        open_weights(path)


def test_index_naming_a_tensor_its_shard_lacks(tmp_path: Path) -> None:
    path = save_tiny(TinyModel("llama", "LlamaConfig").model(), tmp_path, max_shard_size="40KB")
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.ghost.weight"] = next(iter(content["weight_map"].values()))
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"model\.ghost\.weight: listed in the index but not in the file"):
        open_weights(path)


def test_index_may_not_point_elsewhere(checkpoint: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../model.safetensors"}}))
    with pytest.raises(WeightsError, match="plain file name"):
        open_weights(checkpoint)


def test_missing_tensor(checkpoint: Path) -> None:
    _edit(checkpoint, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"1 of \d+ tensors are missing: layers\.1\.mlp\.up_proj\.weight"):
        _load(checkpoint)


def test_extra_tensor(checkpoint: Path) -> None:
    _edit(checkpoint, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}))
    with pytest.raises(WeightsError, match=r"not of LlamaForCausalLM: model\.layers\.0\.self_attn\.q_proj\.bias"):
        _load(checkpoint)


def test_mismatched_shape(checkpoint: Path) -> None:
    _edit(checkpoint, lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(79, 48)}))
    with pytest.raises(WeightsError, match=r"up_proj\.weight: found shape \(79, 48\), expected \(80, 48\)"):
        _load(checkpoint)


def test_integer_weights(checkpoint: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    _edit(checkpoint, lambda tensors: tensors.update({name: torch.zeros(80, 48, dtype=torch.int8)}))
    with pytest.raises(WeightsError, match=r"up_proj\.weight: found torch\.int8, expected float32"):
        _load(checkpoint)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        open_weights(tmp_path)
    with pytest.raises(WeightsError, match="no such file"):
        open_weights(tmp_path / "absent")


def test_bug_25_tied_checkpoint_with_the_same_head(tied: Path) -> None:
    """vllm#6758, #16555: an lm_head where the config says there is none."""
    expected = _logits(tied)
    _edit(tied, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model = _load(tied)
    assert model.head.weight is model.embedding.weight, "kept once"
    assert torch.equal(_logits(tied), expected)


def test_bug_25_tied_checkpoint_with_another_head(tied: Path) -> None:
    """Transformers 5 then doesn't tie; neither does Shoal."""
    import transformers

    _edit(tied, lambda tensors: tensors.update({"lm_head.weight": torch.randn(211, 48)}))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tied, attn_implementation="eager")
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(_logits(tied), expected, rtol=1e-4, atol=1e-4)


def test_bug_25_untied_checkpoint_without_a_head(checkpoint: Path) -> None:
    _edit(checkpoint, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"missing: lm_head\.weight"):
        _load(checkpoint)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.removeprefix("model."),
        lambda name: "language_model." + name,
        lambda name: "model.language_model." + name.removeprefix("model."),
    ],
    ids=["bare", "nested", "nested-in-model"],
)
def test_bug_25_nested_names(checkpoint: Path, rename) -> None:
    expected = _logits(checkpoint)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        renamed = {rename(name): tensor for name, tensor in tensors.items()}
        tensors.clear()
        tensors.update(renamed, **{"vision_tower.embed.weight": torch.zeros(3)})

    _edit(checkpoint, change)
    assert torch.equal(_logits(checkpoint), expected)


def test_same_tensor_under_two_names(checkpoint: Path) -> None:
    _edit(checkpoint, lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"].clone()}))
    with pytest.raises(WeightsError, match="given twice"):
        _load(checkpoint)


def test_rotary_buffers_of_old_checkpoints_are_ignored(checkpoint: Path) -> None:
    _edit(checkpoint, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    _load(checkpoint)


@pytest.mark.parametrize("kind", [k for k in gguf.GGMLQuantizationType if k in gguf.quants._type_traits])
def test_every_ggml_type_the_library_knows(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """The bytes are random; what they mean is the library's word."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = 12, 512
    raw = np.random.default_rng(0).integers(0, 60, (rows, columns // block * size), dtype=np.uint8)
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = open_weights(path)
    ((name, tensor),) = source.tensors()
    assert name == "model.layers.0.mlp.up_proj.weight"
    assert tensor.shape == source.shape(name) == (rows, columns)
    assert np.array_equal(tensor.numpy(), gguf.dequantize(raw, kind), equal_nan=True)


def test_gguf_of_an_architecture_without_a_table(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match="'mamba' is not read; accepted: llama"):
        open_weights(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WeightsError, match="truncated"):
        open_weights(path)


def test_engine_names_what_it_does_not_run(checkpoint: Path) -> None:
    from dataclasses import replace

    spec = load_model_spec(checkpoint)
    with pytest.raises(UnsupportedModel, match=r"MambaForCausalLM; it runs LlamaForCausalLM"):
        build_model(replace(spec, architecture="MambaForCausalLM"), torch.float32, CPU)
    layer = spec.layers[1]
    chunked = replace(layer, attention=replace(layer.attention, chunk=64))
    with pytest.raises(UnsupportedModel, match="layer 1 has chunked local attention"):
        build_model(replace(spec, layers=(spec.layers[0], chunked)), torch.float32, CPU)


def test_kv_memory_and_copies(checkpoint: Path) -> None:
    spec = load_model_spec(checkpoint)
    kv = KvCache(spec, 9, 4, torch.bfloat16, CPU)
    assert kv.bytes == 9 * kv_block_bytes(spec, 4, torch.bfloat16) == 9 * 3 * 4 * 2 * (16 + 16) * 2
    for layer in kv.layers:
        layer.k.normal_()
        layer.v.normal_()
    before = [(layer.k.clone(), layer.v.clone()) for layer in kv.layers]
    kv.copy_blocks([(2, 3), (3, 5)])
    kv.clear_blocks([7])
    for layer, (k, v) in zip(kv.layers, before, strict=True):
        assert torch.equal(layer.k[3], k[2])
        assert torch.equal(layer.v[5], v[3])
        assert torch.equal(layer.k[2], k[2])
        assert not layer.k[7].any()
        assert not layer.v[7].any()
