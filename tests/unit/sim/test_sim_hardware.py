"""Replicas as the planner counts them: memory in tokens, step times as predicted, and refusals with its reason."""

import pytest

from shoal.plan.api import find_model
from shoal.plan.step_time import BatchShape
from shoal.sim.hardware import Machine, planned_replica
from shoal.sim.timing import StepWork
from shoal.specs.catalog import load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout


def machine(model: str = "llama-3.1-8b", gpu: str = "h100", **changes: object) -> Machine:
    return Machine(model=find_model(model), accelerator=load_catalog().accelerator(gpu), **changes)  # type: ignore[arg-type]


def test_memory_becomes_blocks_and_settings_are_the_engines() -> None:
    replica = planned_replica(machine(), load_catalog())
    # 8.03 G parameters in bf16 and 131,072 bytes of KV per token in 0.92 × 85 GB.
    assert replica.kv_token_bytes == 131_072
    tokens = replica.scheduler.kv_capacity
    assert 380_000 < tokens < 480_000
    assert replica.scheduler.max_model_len == 131_072
    narrow = planned_replica(machine(kv_dtype="fp8", max_num_seqs=8, block_size=32), load_catalog())
    assert narrow.scheduler.max_sequences == 8
    assert narrow.scheduler.block_size == 32
    assert narrow.scheduler.kv_capacity > 1.9 * tokens


def test_step_times_are_the_planners() -> None:
    step = planned_replica(machine(), load_catalog()).step
    work = StepWork(
        chunks=2, tokens=300, cached=100 * 50 + 200 * 1000, pairs=100**2 + 200**2, decode=3, context=900
    )
    shape = BatchShape(((100, 50), (200, 1000)), 3, 900)
    assert step.seconds(work) == pytest.approx(step.roofline.seconds(shape).mean, rel=1e-12)
    assert step.scaled(2.0).scaled(1.5).seconds(work) == pytest.approx(3 * step.seconds(work))
    # A decode step reads all weights: 15 GB at 3.35 TB/s take 4.5 ms.
    assert 4.5e-3 < step.seconds(StepWork(decode=1, context=10)) < 9e-3


def test_the_smallest_degree_that_fits_is_taken() -> None:
    assert planned_replica(machine("llama-3.1-70b"), load_catalog()).candidate.layout == Layout(tp=2)
    assert planned_replica(machine(), load_catalog()).candidate.layout == Layout()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": "llama-3.1-70b", "layout": Layout()}, "layout.*weights do not fit: 14.* GB"),
        ({"model": "llama-3.1-405b", "gpu": "l4"}, "layout.*weights do not fit"),
        ({"layout": Layout(tp=3)}, "layout"),
        ({"layout": Layout(pp=2)}, "layout.*no pipeline stages"),
        ({"max_model_len": 10**7}, "max_model_len.*131,072"),
        ({"weights": "int3"}, "int3"),
        ({"kv_dtype": "fp2"}, "fp2"),
        ({"engine": "vllmm"}, "vllmm"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(changes: dict[str, object], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        planned_replica(machine(**changes), load_catalog())  # type: ignore[arg-type]


def test_an_engine_is_settings_and_says_where_it_differs() -> None:
    ours = planned_replica(machine(engine="shoal", gpu="cpu", model="smollm2-135m", weights="bf16"), load_catalog())
    theirs = planned_replica(machine(engine="sglang"), load_catalog())
    assert ours.scheduler.preempts == "lowest"
    assert ours.deviations == ()
    assert theirs.scheduler.preempts == "latest"
    assert theirs.scheduler.starvation_bound > 1e6
    assert any("mixed-chunk" in text for text in theirs.deviations)
    other = planned_replica(machine(behaves_as="llamacpp"), load_catalog())
    assert any("llamacpp: sequences share one pool" in text for text in other.deviations)
