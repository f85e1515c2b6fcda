"""Memory under layouts: rules that hold for any model, on specs made up here."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan.kv import (
    INDEXER_BYTES,
    KvCurve,
    even_stages,
    kv_bytes_per_token,
    sequence_curve,
    stage_curves,
    stages,
)
from shoal.plan.memory import StepShape, replica_memory, stage_weights
from shoal.specs.catalog import load_catalog
from shoal.specs.catalog.models import catalog_model
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout, layouts
from shoal.specs.model import (
    AttentionSpec,
    FfnSpec,
    LayerSpec,
    LinearStateSpec,
    MlaSpec,
    ModelSpec,
    MtpSpec,
    NormSpec,
    RopeSpec,
    RouterSpec,
)
from shoal.specs.sizes import kv_layers, stored_groups, weight_bytes
from shoal.specs.stages import stage_layers

ROPE = RopeSpec("default", 10_000.0, 64, 4096)
DENSE = FfnSpec("dense", 1024, "silu")
MOE = FfnSpec("moe", 256, "silu", router=RouterSpec(8, 2), shared_intermediate=256)


def gqa(heads: int = 8, kv_heads: int = 4, window: int | None = None) -> AttentionSpec:
    return AttentionSpec("gqa", heads, kv_heads, 64, 64, 0.125, ROPE, window=window)


MLA = AttentionSpec("mla", 8, 8, 96, 64, 0.1, replace(ROPE, dim=32), mla=MlaSpec(128, 256, 64, 32, 64))
STATE = LinearStateSpec(
    "gated_delta_net", 4096, 128, key_heads=4, value_heads=8, key_dim=32, value_dim=16, kernel=4
)
LINEAR = AttentionSpec("linear", 8, 8, 64, 64, 1.0, None, linear=STATE)


def model(*layers: LayerSpec, tied: bool = False) -> ModelSpec:
    return ModelSpec("made-up", "LlamaForCausalLM", "llama", 1000, 512, layers, NormSpec(1e-5), tied, 4096,
                     "bfloat16", None, ())  # fmt: skip


def dense(count: int = 8, attention: AttentionSpec | None = None) -> ModelSpec:
    return model(*[LayerSpec(attention or gqa(), DENSE)] * count)


def test_one_device_holds_every_byte_of_the_checkpoint() -> None:
    for spec in (dense(), model(*[LayerSpec(gqa(), MOE)] * 4), dense(attention=MLA)):
        assert stage_weights(spec, Layout()) == (weight_bytes(spec).total,)


def test_tensor_parallel_ranks_hold_the_model_and_their_copies() -> None:
    spec = dense()
    norms = weight_bytes(spec).norms
    assert stage_weights(spec, Layout(tp=4))[0] * 4 == pytest.approx(weight_bytes(spec).total + 3 * norms)


def test_kv_heads_are_copied_where_ranks_outnumber_them() -> None:
    spec = dense(attention=gqa(8, 2))
    projections = 2 * 8 * (2 * 64 * 512) * 2  # k and v, eight layers, two heads, bf16
    norms = weight_bytes(spec).norms
    eight = stage_weights(spec, Layout(tp=8))[0]
    assert eight * 8 == pytest.approx(weight_bytes(spec).total + 7 * norms + 3 * projections)
    curves = [stage_curves(spec, Layout(tp=tp), "bf16")[0].rate for tp in (1, 2, 4, 8)]
    assert curves == [curves[0], curves[0] / 2, curves[0] / 2, curves[0] / 2]


def test_uneven_heads_follow_their_kv_heads() -> None:
    spec = dense(attention=gqa(9, 3))
    rate = stage_curves(spec, Layout(), "bf16")[0].rate
    assert stage_curves(spec, Layout(tp=2), "bf16")[0].rate == pytest.approx(rate * 2 / 3)
    attention = weight_bytes(spec).attention
    others = weight_bytes(spec).total - attention - weight_bytes(spec).norms
    assert stage_weights(spec, Layout(tp=2))[0] == pytest.approx(
        attention * 2 / 3 + others / 2 + weight_bytes(spec).norms
    )


def test_latents_are_copied_over_tp_and_split_over_cp_and_dp() -> None:
    spec = dense(attention=MLA)
    rate = stage_curves(spec, Layout(), "bf16")[0].rate
    assert rate == 8 * (256 + 32) * 2
    assert stage_curves(spec, Layout(tp=8), "bf16")[0].rate == rate
    assert stage_curves(spec, Layout(cp=4), "bf16")[0].rate == rate / 4
    engine, device = load_catalog().engine("vllm", "0.19"), 80e9
    alone = replica_memory(spec, Layout(tp=1), device, engine).max_batch(4096)
    assert replica_memory(spec, Layout(dp=8), device, engine).max_batch(4096) == pytest.approx(8 * alone, rel=0.01)


def test_experts_are_split_over_all_ranks_of_a_stage_and_attention_over_tp() -> None:
    spec = model(*[LayerSpec(gqa(), MOE)] * 4)
    parts = weight_bytes(spec)
    rest = parts.total - parts.routed_experts
    assert stage_weights(spec, Layout(dp=4, ep=4))[0] == pytest.approx(parts.routed_experts / 4 + rest)
    assert stage_weights(spec, Layout(dp=4, ep=1))[0] == pytest.approx(parts.routed_experts / 4 + rest)
    # Three groups of eight experts: one group holds three.
    assert stage_weights(spec, Layout(dp=3, ep=3))[0] == pytest.approx(parts.routed_experts * 3 / 8 + rest)


def test_stages_are_uneven_and_the_ends_hold_the_tables() -> None:
    assert [len(stage) for stage in even_stages(126, 4)] == [31, 32, 32, 31]
    spec = dense(10)
    parts = weight_bytes(spec)
    first, middle, second, last = stage_weights(spec, Layout(pp=4))
    layer = (parts.total - parts.embedding - parts.lm_head - 512 * 2) / 10
    assert first == pytest.approx(2 * layer + parts.embedding)
    assert (middle, second) == (pytest.approx(3 * layer), pytest.approx(3 * layer))
    assert last == pytest.approx(2 * layer + parts.lm_head + 512 * 2)


def test_shoals_stages_are_those_that_its_engine_makes() -> None:
    """A head as heavy as the layers leaves the last stage few of them; dealt evenly, it doesn't."""
    spec = replace(dense(10), vocab=20_000)
    by_cost = stages(spec, 2, load_catalog().engine("shoal").stages)
    assert by_cost == stage_layers(spec, 2)
    assert len(by_cost[1]) < len(stages(spec, 2, load_catalog().engine("vllm").stages)[1]) == 5
    heavy, even = (max(stage_weights(spec, Layout(pp=2), rule=rule)) for rule in ("cost", "even"))
    assert heavy != even


def test_a_tied_table_lies_on_both_ends() -> None:
    spec = replace(dense(4), tied_embeddings=True)
    table = 1000 * 512 * 2
    assert sum(stage_weights(spec, Layout(pp=2))) == weight_bytes(spec).total + table


@pytest.mark.parametrize(
    ("method", "bytes_per_weight"),
    [("fp32", 4), ("bf16", 2), ("fp8_block", 1 + 4 / 128**2), ("int8", 1), ("mxfp4", 0.53125), ("nvfp4", 0.5625)],
)
def test_width_of_quantized_layers(method: str, bytes_per_weight: float) -> None:
    spec = dense(32)
    plain = weight_bytes(spec)
    linear = (plain.attention + plain.dense_ffn) / 2
    width = 4 if method == "fp32" else 2
    kept = (plain.embedding + plain.lm_head + plain.norms) / 2 * width
    held = stage_weights(spec, Layout(), method)[0]
    assert held == pytest.approx(linear * bytes_per_weight + kept, rel=0.01)  # row scales of narrow layers


def test_int4_of_128_is_about_half_a_byte() -> None:
    plain = weight_bytes(dense(32))
    linear = (plain.attention + plain.dense_ffn) / 2
    held = stage_weights(dense(32), Layout(), "int4")[0] - plain.embedding - plain.lm_head - plain.norms
    assert held / linear == pytest.approx(0.52, abs=0.005)


def test_windows_states_and_full_layers_in_one_curve() -> None:
    spec = model(LayerSpec(gqa(), DENSE), LayerSpec(gqa(window=128), DENSE), LayerSpec(LINEAR, DENSE))
    curve = sequence_curve(spec)
    token, state = 4 * 128 * 2, 4 * 4096 + 2 * 128
    assert curve.bytes(100) == state + 2 * 100 * token
    assert curve.bytes(1000) == state + (1000 + 128) * token
    assert kv_bytes_per_token(spec) == token
    assert sequence_curve(spec, "fp8").bytes(1000) == pytest.approx(state + (1000 + 128) * token / 2)


def test_a_full_window_adds_nothing_and_a_state_is_there_from_the_start() -> None:
    gemma, qwen = catalog_model("gemma3-270m"), catalog_model("qwen3.5-35b-a3b")
    token = 2 * 1 * 256 * 2
    assert kv_bytes_per_token(gemma) == 3 * token
    assert sequence_curve(gemma).bytes(100) == 18 * token * 100
    assert sequence_curve(gemma).bytes(5000) == 3 * token * 5000 + 15 * token * 512
    state = 30 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    assert sequence_curve(qwen).bytes(0) == sequence_curve(qwen, "fp8").bytes(0) == state
    assert kv_bytes_per_token(qwen) == 10 * 2 * 2 * 256 * 2


def test_mla_caches_one_latent_and_the_indexers_keys_in_fp8() -> None:
    spec = catalog_model("deepseek-v3.2")
    assert kv_bytes_per_token(spec) == 61 * ((512 + 64) * 2 + 128 * INDEXER_BYTES)
    assert {kind.kv_heads for kind in kv_layers(spec)} == {None}


def test_compressed_layers_keep_a_window_and_one_entry_for_many_tokens() -> None:
    context = 128 * 100
    window, sparse, heavy = 43 * 128, 21 * context // 4, 20 * context // 128
    expected = 512 * 2 * (window + sparse + heavy) + 128 * INDEXER_BYTES * sparse
    assert sequence_curve(catalog_model("deepseek-v4-flash")).bytes(context) == expected


@settings(max_examples=200, deadline=None)
@given(
    constant=st.floats(0, 1e9),
    pieces=st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 100_000)), max_size=4, unique_by=lambda p: p[1]),
    tail=st.floats(1, 1e6),
    length=st.floats(1, 1e7),
)
def test_a_curve_is_inverted_exactly(
    constant: float, pieces: list[tuple[float, int]], tail: float, length: float
) -> None:
    bounded = tuple(sorted(((rate, float(cap)) for rate, cap in pieces), key=lambda piece: piece[1]))
    curve = KvCurve(constant, (*bounded, (tail, math.inf)))
    assert curve.length(curve.bytes(length)) == pytest.approx(length, rel=1e-6)
    assert constant == 0 or curve.length(constant * 0.5) == 0


@settings(max_examples=100, deadline=None)
@given(
    context=st.integers(1, 200_000),
    size=st.floats(4e9, 300e9),
    engine=st.sampled_from(["vllm", "trtllm", "sglang"]),
)
def test_the_largest_batch_fits_and_one_more_does_not(context: int, size: float, engine: str) -> None:
    spec = model(*[LayerSpec(gqa(), DENSE)] * 3, LayerSpec(gqa(window=128), DENSE), LayerSpec(LINEAR, DENSE))
    memory = replica_memory(spec, Layout(tp=2), size, load_catalog().engine(engine), step=StepShape(8, 512))
    batch = memory.max_batch(context)
    if batch == 0:
        assert memory.verdict(context) != "fits"
        return
    assert memory.verdict(context, batch) == "fits"
    assert memory.verdict(context, batch + 1) == "batch does not fit"
    assert memory.max_context(batch) >= context * (1 - 1e-9)
    assert memory.max_context(batch + 1) < context


def test_parts_of_a_device_add_up() -> None:
    for engine in ("vllm", "trtllm", "sglang", "shoal"):
        memory = replica_memory(dense(), Layout(tp=2, pp=2), 80e9, load_catalog().engine(engine))
        for part in memory.stages:
            total = part.weights + part.activation + part.runtime + part.graphs + part.withheld + part.kv_room
            assert total == pytest.approx(part.device)


def test_defaults_by_engine_version_and_device() -> None:
    catalog = load_catalog()
    old, new = (
        replica_memory(dense(), Layout(), 80e9, catalog.engine("vllm", version)) for version in ("0.19.1", "0.22")
    )
    assert old.worst.withheld == pytest.approx(0.10 * 80e9)
    assert new.worst.withheld == pytest.approx(0.08 * 80e9)
    assert catalog.engine("vllm").defaults(24e9) == (256, 2048)
    assert catalog.engine("vllm").defaults(79.18 * 2**30) == (1024, 8192)
    free = replica_memory(dense(), Layout(), 80e9, catalog.engine("trtllm")).worst
    assert free.kv_room == pytest.approx(0.9 * (80e9 - free.weights - free.activation - free.runtime))


def test_sglang_keeps_its_documented_share_free() -> None:
    """SGLang's own example: 0.836 of an 80 GiB H100 with default settings and tp 1."""
    mib = 2**20
    memory = replica_memory(dense(), Layout(), 81_920 * mib, load_catalog().engine("sglang"))
    assert 1 - memory.worst.withheld / (81_920 * mib) == pytest.approx(0.836, abs=0.001)


def test_every_layout_of_a_mixture_holds_at_least_its_share() -> None:
    spec = model(*[LayerSpec(MLA, DENSE)], *[LayerSpec(MLA, MOE)] * 5)
    total = weight_bytes(spec).total
    valid = [layout for layout in layouts(8, spec) if not layout.problems(spec)]
    assert len(valid) > 10
    for layout in valid:
        assert sum(stage_weights(spec, layout)) * layout.stage_ranks >= total * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"device_bytes": -1.0}, "device_bytes"),
        ({"fraction": 1.5}, "fraction"),
        ({"fraction": 0.0}, "fraction"),
        ({"kv_dtype": "fp9"}, "kv_dtype"),
        ({"quantization": "fp3"}, "quantization"),
    ],
)
def test_bad_input_names_its_field(arguments: dict[str, object], field: str) -> None:
    given = {"device_bytes": 80e9, **arguments}
    size = given.pop("device_bytes")
    with pytest.raises(SpecError) as caught:
        replica_memory(dense(), Layout(), size, load_catalog().engine("vllm"), **given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_prediction_layers_lie_on_the_last_stage_and_are_cut_as_layers_are() -> None:
    layer = LayerSpec(gqa(), MOE)
    spec = replace(model(*[layer] * 4), mtp=MtpSpec(1, layer))
    extra = sum(group.total() for group in stored_groups(spec, mtp=True))
    assert extra > 0
    assert stage_weights(spec, Layout(), mtp=True)[0] == stage_weights(spec, Layout())[0] + extra
    first, last = stage_weights(spec, Layout(pp=2), mtp=True)
    assert (first, last) == (stage_weights(spec, Layout(pp=2))[0], stage_weights(spec, Layout(pp=2))[1] + extra)
    cut = stage_weights(spec, Layout(tp=4), mtp=True)[0] - stage_weights(spec, Layout(tp=4))[0]
    assert extra / 4 < cut < extra
