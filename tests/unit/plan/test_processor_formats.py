"""Fault 5 of issue 14: plans for processors search every format that our engine runs."""

import pytest

from shoal.plan.api import ask
from shoal.plan.candidates import Candidate, gate
from shoal.plan.question import OWN_FORMATS, kv_options, weight_options
from shoal.plan.search import search
from shoal.specs import catalog_model
from shoal.specs.catalog import load_catalog
from shoal.specs.sizes import weight_bytes

CPU = load_catalog().accelerator("cpu_2core")


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-0.6b", "gpt-oss-20b", "Qwen/Qwen3-8B-FP8"])
@pytest.mark.parametrize("gpu", ["cpu_2core", "cpu"])
def test_every_format_is_searched(name: str, gpu: str) -> None:
    question = ask(name, gpu=[gpu], users=1, context=512, tpot=None, ttft=None)
    held = {(c.weights.name, c.kv_dtype) for c in gate(question) if isinstance(c, Candidate)}
    formats = {weights for weights, _ in held}
    # The largest do not fit in two cores' 24 GB in every format.
    assert formats == set(OWN_FORMATS) if gpu == "cpu" else "int4" in formats
    for weights, cache in held:
        assert cache in (("bf16" if weights == "bf16" else "fp32"), "int8")


def test_a_target_that_only_rounded_weights_meet_is_met() -> None:
    """float32 alone was searched, then "impossible whatever the engine", although int4 and int8 meet the target."""
    slow = search(ask("qwen3-0.6b", gpu=["cpu_2core"], users=1, context=512, weights=["float32"], ttft=None))
    assert slow.best is None
    tight = {
        d.weights.name: d.tpot.mean
        for d in search(ask("qwen3-0.6b", gpu=["cpu_2core"], users=1, context=512, ttft=None, tpot=None)).designs
    }
    between = (min(tight["int8"], tight["int4"]) + tight["float32"]) / 2
    plan = search(ask("qwen3-0.6b", gpu=["cpu_2core"], users=1, context=512, ttft=None, tpot=between))
    assert plan.impossible is None
    assert {d.weights.name for d in plan.designs} & {"int8", "int4"}
    assert "float32" not in {d.weights.name for d in plan.designs}


def test_impossible_says_of_which_formats() -> None:
    plan = search(ask("llama-3.1-8b", gpu=["cpu_2core"], users=1, context=512, tpot=1e-3))
    assert plan.impossible is not None
    message = plan.impossible.message
    assert "whatever the engine" not in message
    assert "int4" in message


@pytest.mark.parametrize(
    ("asked", "names"),
    [((), list(OWN_FORMATS)), (("checkpoint",), ["float32"]), (("fp32", "float32"), ["float32"]),
     (("int8", "bf16"), ["int8", "bf16"])],
)  # fmt: skip
def test_weights_as_asked(asked: tuple[str, ...], names: list[str]) -> None:
    question = ask("smollm2-135m", gpu=["cpu_2core"], users=1, context=512, weights=asked)
    assert [option.name for option in weight_options(question, CPU)] == names


def test_formats_that_our_engine_lacks_are_refused_by_name() -> None:
    question = ask("smollm2-135m", gpu=["cpu_2core"], users=1, context=512, kv_dtypes=["fp8"])
    plan = search(question)
    assert plan.best is None
    assert any("has no fp8 cache" in rejection.detail for rejection in plan.rejections)


def test_bytes_are_those_of_our_own_groups() -> None:
    """8.5 and 5 bits a weight, embedding and head in 8.5 (docs/quantization.md)."""
    model = catalog_model("smollm2-135m")
    whole = weight_bytes(model, "float32").total
    eight, four = weight_bytes(model, "shoal_int8"), weight_bytes(model, "shoal_int4")
    assert eight.total / whole == pytest.approx(8.5 / 32, rel=0.01)
    assert four.embedding == eight.embedding
    linear = four.attention + four.dense_ffn
    assert linear / (eight.attention + eight.dense_ffn) == pytest.approx(5 / 8.5, rel=0.01)


def test_latent_attention_has_no_int8_cache() -> None:
    question = ask("deepseek-v3", gpu=["cpu"], users=1, context=512)
    assert kv_options(question, load_catalog().accelerator("cpu"), None) == ["fp32"]
