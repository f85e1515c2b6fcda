"""Layouts: sizes, spans, rules, and the nearest layout that keeps them."""

from dataclasses import replace

import pytest

from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout, layouts
from shoal.specs.model import (
    AttentionSpec,
    FfnSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    QuantizationSpec,
    RopeSpec,
    RouterSpec,
)

ATTENTION = AttentionSpec("gqa", 9, 3, 64, 64, 0.125, RopeSpec("default", 1e4, 64, 4096))
DENSE = FfnSpec("dense", 1536, "silu")
MOE = FfnSpec("moe", 1536, "silu", router=RouterSpec(8, 2))


def model(ffn: FfnSpec = DENSE, heads: int = 9, kv_heads: int = 3, layers: int = 6) -> ModelSpec:
    attention = replace(ATTENTION, heads=heads, kv_heads=kv_heads)
    return ModelSpec("made-up", "LlamaForCausalLM", "llama", 1000, 576, (LayerSpec(attention, ffn),) * layers,
                     NormSpec(1e-5), False, 4096, "bfloat16", None, ())  # fmt: skip


def test_world_and_spans() -> None:
    layout = Layout(tp=4, pp=2, ep=8, dp=2)
    assert (layout.stage_ranks, layout.world, layout.moe_tp) == (8, 16, 1)
    assert [layout.span(axis) for axis in ("tp", "cp", "dp", "ep", "pp")] == [4, 4, 8, 8, 16]  # type: ignore[arg-type]
    assert layout.label() == "tp4 pp2 ep8 dp2"
    assert Layout().label() == "tp1"


@pytest.mark.parametrize(
    ("layout", "ffn", "rule"),
    [
        (Layout(pp=7), DENSE, "stages"),
        (Layout(tp=10), DENSE, "heads"),
        (Layout(dp=2, ep=2), DENSE, "no-experts"),
        (Layout(dp=4, ep=3), MOE, "expert-group"),
        (Layout(dp=16, ep=16), MOE, "expert-count"),
        (Layout(dp=5, ep=1), MOE, "expert-width"),
    ],
)
def test_each_rule_is_named(layout: Layout, ffn: FfnSpec, rule: str) -> None:
    assert [problem.rule for problem in layout.problems(model(ffn))] == [rule]
    nearest = layout.nearest(model(ffn))[0]
    assert nearest.world <= layout.world
    assert not nearest.problems(model(ffn))
    with pytest.raises(SpecError, match=nearest.label()):
        layout.validate(model(ffn))


def test_heads_need_not_divide_unless_the_engine_says_so() -> None:
    assert not Layout(tp=2).problems(model())
    assert [problem.rule for problem in Layout(tp=2).problems(model(), even_heads=True)] == ["heads"]
    assert not Layout(tp=3).problems(model(), even_heads=True)
    # KV heads may be copied: sixteen ranks for eight of them.
    assert not Layout(tp=16).problems(model(heads=32, kv_heads=8), even_heads=True)


def test_blocks_of_a_quantized_expert_are_not_cut() -> None:
    blocks = QuantizationSpec("fp8_block", 8.002, (128, 128))
    spec = replace(model(MOE, heads=64, kv_heads=8), quantization=blocks)
    assert not Layout(tp=4).problems(spec)
    assert [problem.rule for problem in Layout(tp=8).problems(spec)] == ["expert-width"]
    assert not Layout(tp=8, ep=8).problems(spec)


def test_layouts_of_a_world_are_all_of_that_size_and_different() -> None:
    found = layouts(8, model(MOE))
    assert len(found) == len(set(found))
    assert {layout.world for layout in found} == {8}
    assert Layout(tp=2, dp=4, ep=8) in found
    assert all(layout.ep == 1 for layout in layouts(8, model()))


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, 10**9])
def test_absurd_degrees_are_refused_by_axis(degree: object) -> None:
    with pytest.raises(SpecError) as caught:
        Layout(pp=degree)  # type: ignore[arg-type]
    assert caught.value.field == "layout.pp"
