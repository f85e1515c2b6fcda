"""Pieces of a mixture of experts: routers, grouped products, published weight formats."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from shoal.engine.layers.experts import Experts
from shoal.engine.layers.moe import combine
from shoal.engine.layers.router import Router, Routing
from shoal.engine.ops import reference_experts
from shoal.engine.parallel.group import SoloGroup
from shoal.engine.weights import WeightsError, open_weights
from shoal.engine.weights.mxfp4 import dequantize_mxfp4
from shoal.engine.weights.published import FP8_BLOCK
from shoal.specs.model import FfnSpec, RouterSpec

CPU = torch.device("cpu")
HIDDEN = 20
CONFIG = SimpleNamespace(
    num_experts_per_tok=3,
    num_local_experts=12,
    num_experts=12,
    hidden_size=HIDDEN,
    routed_scaling_factor=2.5,
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    topk_method="group_limited_greedy",
)
SPEC = RouterSpec(experts=12, top_k=3)
ROUTERS = {
    "mixtral": (MixtralTopKRouter, SPEC),
    "deepseek-v2": (
        DeepseekV2TopkRouter,
        RouterSpec(12, 3, normalize=False, groups=4, top_groups=2, group_score="max", scaling=2.5),
    ),
    "deepseek-v3": (
        DeepseekV3TopkRouter,
        RouterSpec(12, 3, scoring="sigmoid", groups=4, top_groups=2, correction_bias=True, scaling=2.5),
    ),
    "gpt-oss": (GptOssTopKRouter, RouterSpec(12, 3, normalize=False, bias=True, softmax_after_top_k=True)),
}


@pytest.mark.parametrize("family", ROUTERS)
def test_routers_choose_and_weigh_as_transformers(family: str) -> None:
    kind, spec = ROUTERS[family]
    theirs, ours = kind(CONFIG), Router(spec, HIDDEN, CPU)
    torch.manual_seed(3)
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            tensor.normal_()
    ours.weight.copy_(theirs.weight.detach())
    if ours.bias is not None:
        ours.bias.copy_(theirs.bias.detach())
    if ours.correction is not None:
        ours.correction.copy_(theirs.e_score_correction_bias)
    x = torch.randn(200, HIDDEN)
    routing = ours(x)
    with torch.no_grad():
        _, weights, experts = theirs(x)
    # Transformers asks for an unsorted choice: compare by expert.
    right = torch.zeros(200, 12).scatter_(1, experts, weights.float())
    found = torch.zeros(200, 12).scatter_(1, routing.experts, routing.weights)
    torch.testing.assert_close(found, right)
    assert all(len(set(row)) == 3 for row in routing.experts.tolist())


def test_a_row_reaches_no_more_groups_than_it_may() -> None:
    spec = ROUTERS["deepseek-v3"][1]
    router = Router(spec, HIDDEN, CPU)
    torch.manual_seed(0)
    router.weight.normal_()
    assert router.correction is not None
    router.correction.normal_()
    groups = router(torch.randn(500, HIDDEN)).experts // 3
    assert max(len(set(row)) for row in groups.tolist()) == 2


@pytest.mark.parametrize("counts", [(4, 0, 3, 1), (0, 0, 0, 8), (0, 0, 0, 0)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_grouped_products_are_those_of_each_expert(counts: Sequence[int], with_bias: bool) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(sum(counts), 6, dtype=torch.float64), torch.randn(4, 5, 6, dtype=torch.float64)
    bias = torch.randn(4, 5, dtype=torch.float64) if with_bias else None
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    right = torch.einsum("ni,noi->no", x, weight[owner])
    right = right if bias is None else right + bias[owner]
    torch.testing.assert_close(reference_experts.grouped_linear(x, counts, weight, bias), right)


def test_counts_that_are_not_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 counts that sum to 3, for 2 experts and 4 rows"):
        reference_experts.grouped_linear(torch.zeros(4, 2), (1, 2), torch.zeros(2, 3, 2))


def test_gpt_oss_experts_are_those_of_transformers() -> None:
    """Clamped SwiGLU with biases; theirs has gate and up in turn, and matrices the other way round."""
    config = SimpleNamespace(
        intermediate_size=10, num_local_experts=3, hidden_size=HIDDEN, swiglu_alpha=1.3, swiglu_limit=0.7
    )
    config._experts_implementation = "eager"
    theirs = GptOssExperts(config)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    spec = FfnSpec("moe", 10, "swiglu_oai", router=SPEC, swiglu_limit=0.7, swiglu_alpha=1.3, experts_bias=True)
    ours = Experts(spec, 3, HIDDEN, torch.float32, CPU, SoloGroup("etp"))
    halves = [slice(0, None, 2), slice(1, None, 2)]
    assert ours.gate_up_bias is not None
    assert ours.down_bias is not None
    ours.gate_up.copy_(torch.cat([theirs.gate_up_proj.detach()[..., half] for half in halves], -1).mT)
    ours.gate_up_bias.copy_(torch.cat([theirs.gate_up_proj_bias.detach()[..., half] for half in halves], -1))
    ours.down.copy_(theirs.down_proj.detach().mT)
    ours.down_bias.copy_(theirs.down_proj_bias.detach())
    x = torch.randn(7, HIDDEN)
    with torch.no_grad():
        one_each = torch.tensor([[0]] * 2 + [[2]] * 5)
        right = theirs(x, one_each, torch.ones(7, 1))
    torch.testing.assert_close(ours(x, (2, 0, 5)), right)


def test_weighted_sums_do_not_depend_on_the_batch() -> None:
    torch.manual_seed(5)
    computed, weights = torch.randn(8 * 33, 17), torch.rand(33, 8)
    experts = torch.zeros(33, 8, dtype=torch.int64)
    together = combine(computed, Routing(experts, weights))
    for row in range(33):
        part = slice(row, row + 1)
        alone = combine(computed[row * 8 : row * 8 + 8], Routing(experts[part], weights[part]))
        assert torch.equal(alone, together[part])


def test_mxfp4_is_exact() -> None:
    """All sixteen values at extreme and middling scales, against Transformers' own conversion."""
    torch.manual_seed(4)
    blocks = torch.randint(0, 256, (3, 4, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, 4, 2), dtype=torch.uint8)
    ours = dequantize_mxfp4(blocks, scales)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    assert torch.equal(ours, theirs)
    one = dequantize_mxfp4(
        torch.tensor([[0x72, *[0] * 15]], dtype=torch.uint8), torch.tensor([128], dtype=torch.uint8)
    )
    assert one[:3].tolist() == [2.0, 12.0, 0.0]  # low half first: 0b0010 is 1, 0b0111 is 6; the scale is 2


@pytest.mark.parametrize(
    ("blocks", "scales", "message"),
    [
        (torch.zeros(2, 3, 16), torch.zeros(2, 3, dtype=torch.uint8), "both should be uint8"),
        (torch.zeros(2, 3, 15, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), "do not go with"),
    ],
)
def test_what_is_not_mxfp4_is_refused(blocks: Tensor, scales: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dequantize_mxfp4(blocks, scales)


PREFIX = "model.layers.0.mlp.experts."


@pytest.fixture
def stacked(tmp_path: Path) -> tuple[Any, dict[str, Tensor], Path]:
    """gpt-oss's published layout: 4 experts, inner 64, hidden 96."""
    torch.manual_seed(6)
    tensors = {
        f"{PREFIX}gate_up_proj_blocks": torch.randint(0, 256, (4, 128, 3, 16), dtype=torch.uint8),
        f"{PREFIX}gate_up_proj_scales": torch.randint(120, 130, (4, 128, 3), dtype=torch.uint8),
        f"{PREFIX}gate_up_proj_bias": torch.randn(4, 128),
        f"{PREFIX}down_proj_blocks": torch.randint(0, 256, (4, 96, 2, 16), dtype=torch.uint8),
        f"{PREFIX}down_proj_scales": torch.randint(120, 130, (4, 96, 2), dtype=torch.uint8),
        f"{PREFIX}down_proj_bias": torch.randn(4, 96),
        "model.norm.weight": torch.randn(96),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return open_weights(tmp_path), tensors, tmp_path


def test_stacked_experts_are_given_one_by_one(stacked: tuple[Any, dict[str, Tensor], Path]) -> None:
    source, tensors, _ = stacked
    whole = dequantize_mxfp4(tensors[f"{PREFIX}gate_up_proj_blocks"], tensors[f"{PREFIX}gate_up_proj_scales"])
    down = dequantize_mxfp4(tensors[f"{PREFIX}down_proj_blocks"], tensors[f"{PREFIX}down_proj_scales"])
    assert len(source.names()) == len(set(source.names())) == 4 * 6 + 1
    for expert in range(4):
        right = {
            "gate_proj.weight": whole[expert, 0::2],
            "up_proj.weight": whole[expert, 1::2],
            "down_proj.weight": down[expert],
            "gate_proj.bias": tensors[f"{PREFIX}gate_up_proj_bias"][expert, 0::2],
            "up_proj.bias": tensors[f"{PREFIX}gate_up_proj_bias"][expert, 1::2],
            "down_proj.bias": tensors[f"{PREFIX}down_proj_bias"][expert],
        }
        for part, tensor in right.items():
            name = f"{PREFIX}{expert}.{part}"
            assert source.shape(name) == tuple(tensor.shape)
            assert torch.equal(source.read(name), tensor)
    assert dict(source.tensors()).keys() == set(source.names())


def test_of_a_stack_only_what_is_asked_for_is_read(stacked: tuple[Any, dict[str, Tensor], Path]) -> None:
    source, tensors, _ = stacked
    whole = dequantize_mxfp4(tensors[f"{PREFIX}gate_up_proj_blocks"], tensors[f"{PREFIX}gate_up_proj_scales"])
    part = source.read(f"{PREFIX}2.up_proj.weight", (range(8, 24), range(40, 70)))
    assert torch.equal(part, whole[2, 1::2][8:24, 40:70])
    # Rows 16 … 47 of the stack (gate and up alternate), two groups of 32 columns: 16 bytes and a scale each.
    assert source.bytes_read == 32 * 2 * 17


def test_plain_stacks_too(tmp_path: Path) -> None:
    """gpt-oss converted to bfloat16: [experts, inputs, outputs]."""
    gate_up, down = torch.randn(2, 6, 8), torch.randn(2, 4, 6)
    save_file({f"{PREFIX}gate_up_proj": gate_up, f"{PREFIX}down_proj": down}, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    assert torch.equal(source.read(f"{PREFIX}1.up_proj.weight"), gate_up[1, :, 1::2].T)
    assert torch.equal(source.read(f"{PREFIX}1.gate_proj.weight", (range(1, 3),)), gate_up[1, :, 0::2].T[1:3])
    assert torch.equal(source.read(f"{PREFIX}0.down_proj.weight", (range(6), range(1, 4))), down[0].T[:, 1:4])


def test_float8_in_blocks(tmp_path: Path) -> None:
    """DeepSeek-V3's layout, at sizes that blocks do not divide."""
    torch.manual_seed(8)
    name = "model.layers.0.self_attn.o_proj.weight"
    values = torch.randn(200, 300).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3) + 0.5
    save_file(
        {name: values, f"{name}_scale_inv": scales, "model.norm.weight": torch.ones(3)}, tmp_path / "a.safetensors"
    )
    source = open_weights(tmp_path)
    right = torch.stack(
        [
            torch.stack([values[i, j].float() * scales[i // FP8_BLOCK, j // FP8_BLOCK] for j in range(300)])
            for i in range(0, 200, 40)
        ]
    )
    assert list(source.names()) == ["model.norm.weight", name] or list(source.names()) == [
        name,
        "model.norm.weight",
    ]
    assert torch.equal(source.read(name)[::40], right)
    assert torch.equal(source.read(name, (range(120, 161), range(130, 290)))[::40], right[3:5, 130:290])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.weight_scale_inv": torch.ones(1, 1)}, "scales of a.weight, which is missing"),
        (
            {"a.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(2, 1)},
            "expected one a block of 128 × 128",
        ),
        (
            {f"{PREFIX}down_proj_blocks": torch.zeros(1, 2, 3, 16, dtype=torch.uint8)},
            "belong together; one is missing",
        ),
        ({f"{PREFIX}down_proj": torch.zeros(2, 3)}, "expected 3 dimensions, experts first"),
    ],
)
def test_halves_of_a_format_are_refused_by_name(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        open_weights(tmp_path)
