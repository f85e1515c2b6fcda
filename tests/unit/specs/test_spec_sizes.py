"""Tensor inventory, weight bytes and KV bytes, against figures worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from shoal.specs import SpecError, catalog_model, parameter_counts, weight_bytes
from shoal.specs.model import ModelSpec, QuantizationSpec
from shoal.specs.parse import parse_config
from shoal.specs.quantization import is_excluded, quantization, stored_bytes
from shoal.specs.sizes import stored_groups
from shoal.specs.tensors import tensor_groups


def dense(**changes: Any) -> ModelSpec:
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "dtype": "bfloat16",
        **changes,
    }
    return parse_config(config, "dense")


def test_counts_by_part_add_up_by_hand() -> None:
    counts = parameter_counts(dense())
    attention = 256 * 256 * 2 + 128 * 256 * 2
    assert counts.by_part.embedding == counts.by_part.lm_head == 1000 * 256
    assert counts.by_part.attention == 2 * attention
    assert counts.by_part.dense_ffn == 2 * 3 * 256 * 512
    assert counts.by_part.norms == 5 * 256
    assert counts.total == counts.active == counts.by_part.total
    assert counts.active_without_embedding == counts.total - 1000 * 256


def test_tied_embeddings_count_once_and_still_multiply() -> None:
    counts = parameter_counts(dense(tie_word_embeddings=True))
    assert counts.by_part.lm_head == 0
    assert counts.active_without_embedding == counts.total


def test_alike_layers_share_groups() -> None:
    deep = tensor_groups(dense(num_hidden_layers=200))
    assert len(deep) == len(tensor_groups(dense()))
    assert {len(group.layers) for group in deep} == {0, 200}


def test_plain_dtypes_are_bytes_times_elements() -> None:
    spec = dense()
    total = parameter_counts(spec).total
    assert weight_bytes(spec).total == weight_bytes(spec, "bf16").total == 2 * total
    assert weight_bytes(spec, "fp32").total == 4 * total


@pytest.mark.parametrize(
    ("method", "shape", "expected"),
    [
        ("fp8", (256, 512), 256 * 512 + 4),
        ("fp8_channel", (256, 512), 256 * 512 + 4 * 256),
        ("int8", (256, 512), 256 * 512 + 4 * 256),
        ("fp8_block", (256, 512), 256 * 512 + 4 * 2 * 4),
        ("fp8_block", (130, 512), 130 * 512 + 4 * 2 * 4),
        ("fp8_block", (576, 7168), 576 * 7168 + 4 * 5 * 56),
        ("mxfp4", (256, 512), 256 * 512 // 2 + 256 * 16),
        ("nvfp4", (256, 512), 256 * 512 // 2 + 256 * 32 + 4),
        ("int4", (256, 512), 256 * 512 // 2 + 256 * 4 * 20 // 8),
        ("int4_symmetric", (256, 512), 256 * 512 // 2 + 256 * 4 * 2),
    ],
)
def test_stored_bytes_include_the_scales(method: str, shape: tuple[int, int], expected: int) -> None:
    assert stored_bytes(shape, quantization(method)) == expected


@pytest.mark.parametrize(
    ("method", "per_weight"), [("nvfp4", 0.5625), ("mxfp4", 0.53125), ("fp8_block", 1 + 4 / 16384), ("int4", 0.52)]
)
def test_mean_bytes_are_the_published_ones(method: str, per_weight: float) -> None:
    assert quantization(method).bits / 8 == pytest.approx(per_weight, rel=2e-3)


def test_embeddings_norms_head_and_router_stay_as_they_are() -> None:
    spec = catalog_model("qwen3-30b-a3b")
    before, after = weight_bytes(spec, "bf16"), weight_bytes(spec, "fp8_block")
    for part in ("embedding", "lm_head", "norms", "router"):
        assert getattr(before, part) == getattr(after, part)
    assert after.routed_experts < 0.51 * before.routed_experts
    assert after.attention < 0.51 * before.attention


def test_an_exception_in_some_layers_only_splits_the_group() -> None:
    spec = dense(num_hidden_layers=4)
    method = replace(quantization("fp8"), excluded=("lm_head", "model.layers.2.mlp.down_proj"))
    groups = [g for g in stored_groups(spec, method) if g.group.name.endswith("down_proj.weight")]
    assert {(g.method, g.group.layers) for g in groups} == {("bfloat16", (2,)), ("fp8", (0, 1, 3))}
    saved = weight_bytes(spec, method).total - weight_bytes(spec, "fp8").total
    assert saved == 256 * 512 - 4


@pytest.mark.parametrize(
    ("pattern", "module", "excluded"),
    [
        ("lm_head", "lm_head", True),
        ("gate", "model.layers.3.mlp.gate", True),
        ("gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.3.mlp", "model.layers.3.mlp.gate_proj", True),
        ("model.layers.3.mlp", "model.layers.30.mlp.gate_proj", False),
        ("model.layers.*.self_attn", "model.layers.12.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.12.mlp.up_proj", False),
        ("*self_attn*", "model.layers.1.self_attn.o_proj", True),
        ("re:.*self_attn.*", "model.layers.1.self_attn.o_proj", True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj", True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.experts.0.up_proj", False),
    ],
)
def test_exception_patterns(pattern: str, module: str, excluded: bool) -> None:
    assert is_excluded(module, QuantizationSpec("fp8", 8, (), (pattern,))) is excluded


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        # Sizes of the published checkpoints' files, less multi-token prediction, in 10^9 bytes.
        ("openai/gpt-oss-120b", 65.2),
        ("moonshotai/Kimi-K2.5", 594),
        ("moonshotai/Kimi-K3", 1560),
        ("nvidia/DeepSeek-R1-NVFP4", 397),
    ],
)
def test_quantized_checkpoints_are_as_large_as_published(name: str, gigabytes: float) -> None:
    assert weight_bytes(catalog_model(name)).total / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_deepseek_v3_with_its_mtp_layer_is_685_billion() -> None:
    spec = catalog_model("deepseek-v3")
    counts = parameter_counts(spec)
    assert (counts.total + counts.mtp) / 1e9 == pytest.approx(684.5, rel=1e-3)
    assert sum(group.total() for group in stored_groups(spec, "bf16", mtp=True)) == 2 * counts.mtp + 256 * 4


def test_fp4_experts_in_an_fp8_checkpoint() -> None:
    spec = catalog_model("deepseek-v4-flash")
    methods = {g.group.part: g.method for g in stored_groups(spec) if g.group.quantizable and g.group.layers}
    assert methods == {"attention": "fp8_block", "shared_experts": "fp8_block", "routed_experts": "mxfp4"}


def test_unknown_method_lists_the_known() -> None:
    with pytest.raises(SpecError, match=r"'fp7'.*nvfp4"):
        weight_bytes(dense(), "fp7")
