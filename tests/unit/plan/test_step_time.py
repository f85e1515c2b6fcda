"""The step-time model: floors that physics sets, directions that must hold, and both spellings of the formulas."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_deployments import deployment

from shoal.plan.deployment import Deployment, Pool
from shoal.plan.engine_constants import NAMES, PRIOR, SHARES, from_link, to_link
from shoal.plan.estimator import ServingEstimator
from shoal.plan.pool_work import PoolWork, precision_of
from shoal.plan.step_time import BatchShape, RooflineStepTime, Terms, decode_terms
from shoal.plan.work import ModelWork, guess_work, model_work
from shoal.specs import catalog_model, known_models, parameter_counts
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout

MODELS = ("meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
GPUS = ("h100_sxm", "b200_sxm", "gb200", "mi300x", "rtx_4090")


@pytest.fixture(scope="module")
def estimator() -> ServingEstimator:
    return ServingEstimator()


def active_weights(work: ModelWork) -> float:
    """Weights that one token multiplies, without the input embedding."""
    return work.attention_weights + work.dense_weights + work.expert_weights * work.top_k + work.head_weights


@pytest.mark.parametrize("name", known_models())
def test_work_counts_the_weights_that_the_specs_count(name: str) -> None:
    spec = catalog_model(name)
    work, counted = model_work(spec), parameter_counts(spec).by_part
    # Biases and short convolutions are no matrices.
    assert work.attention_weights == pytest.approx(counted.attention, rel=2e-3)
    others = counted.router + counted.norms + counted.residual
    assert work.total_weights == pytest.approx(counted.total - others, rel=1e-3)


@given(
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    st.sampled_from(["bf16", "fp8", "fp4", "int4"]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 512),
    st.sampled_from([(128, 128), (1024, 1024), (8192, 1024), (1024, 8192)]),
    st.sampled_from(["vllm", "trtllm", "sglang", "shoal", "other"]),
)
@settings(max_examples=150, deadline=None)
def test_no_prediction_beats_physics(
    model: str, gpu: str, precision: str, tp: int, concurrency: int, lengths: tuple[int, int], backend: str
) -> None:
    d = deployment(model, gpu, precision, backend, Layout(tp=tp), concurrency, lengths=lengths)
    found = ServingEstimator().estimate(d)
    a, w = d.accelerator, d.model
    attention, dense, _ = precision_of(precision, w).bytes
    read = (w.attention_weights * attention + w.dense_weights * dense) / tp / a.bandwidth
    assert found.tpot.low >= read
    assert found.tpot.low <= found.tpot.mean <= found.tpot.high
    assert 0 < found.ttft.low <= found.ttft.mean <= found.ttft.high < float("inf")
    # Output tokens a second of all running sequences against 2 FLOPs a weight at the best rate there is.
    rate = max(r for _, r in a.rates) * tp
    active = active_weights(w)
    assert found.outcome.running / found.tpot.mean <= rate / (2 * active)
    # Prefill of one prompt cannot beat the same bound.
    assert found.outcome.prefill >= 2 * (active - w.head_weights) * lengths[0] / rate


def test_scalar_and_array_formulas_agree(estimator: ServingEstimator) -> None:
    split = Pool(Layout(dp=8, ep=8), 2)
    cases = [
        deployment(model, gpu, precision, backend, Layout(tp=tp), concurrency, prefill)
        for model, gpu, precision, backend, tp, concurrency, prefill in [
            (MODELS[0], "h100_sxm", "fp8", "vllm", 4, 32, None),
            (MODELS[0], "h100_sxm", "bf16", "vllm", 2, 512, None),
            (MODELS[1], "b200_sxm", "fp4", "trtllm", 8, 64, None),
            (MODELS[1], "gb200", "fp8", "sglang", 8, 4096, split),
            (MODELS[2], "mi300x", "fp4", "unheard-of", 1, 8, None),
        ]
    ]
    many = estimator.many(cases)
    for index, case in enumerate(cases):
        one = estimator.estimate(case)
        assert one.tpot.mean == pytest.approx(many.tpot[index])
        assert one.tpot.low == pytest.approx(many.tpot_low[index])
        assert one.ttft.mean == pytest.approx(many.ttft[index])
        assert one.ttft.high == pytest.approx(many.ttft_high[index])


def _step(estimator: ServingEstimator, d: Deployment) -> RooflineStepTime:
    return estimator.step_time(d)


def test_a_step_grows_with_everything_in_it(estimator: ServingEstimator) -> None:
    step = _step(estimator, deployment())
    base = step.seconds(BatchShape(decode=8, decode_context=8_000)).mean
    assert base > 0
    for more in (
        BatchShape(decode=64, decode_context=64_000),
        BatchShape(decode=8, decode_context=400_000),
        BatchShape(prefill=((2048, 0),), decode=8, decode_context=8_000),
        BatchShape(decode=8, decode_context=8_000, drafts=4),
    ):
        assert step.seconds(more).mean > base
    early = step.seconds(BatchShape(prefill=((2048, 0),))).mean
    assert step.seconds(BatchShape(prefill=((2048, 30_000),))).mean > early
    assert step.seconds(BatchShape()).mean == 0


def test_a_mixed_step_costs_less_than_its_parts(estimator: ServingEstimator) -> None:
    step = _step(estimator, deployment())
    prefill, decode = BatchShape(prefill=((512, 0),)), BatchShape(decode=32, decode_context=32_000)
    mixed = BatchShape(prefill=((512, 0),), decode=32, decode_context=32_000)
    assert step.seconds(mixed).mean < step.seconds(prefill).mean + step.seconds(decode).mean
    assert step.seconds(mixed).mean > max(step.seconds(prefill).mean, step.seconds(decode).mean)


def test_drafts_read_the_weights_once(estimator: ServingEstimator) -> None:
    step = _step(estimator, deployment(concurrency=1))
    one = step.seconds(BatchShape(decode=1, decode_context=1000)).mean
    assert step.seconds(BatchShape(decode=1, decode_context=1000, drafts=3)).mean < 1.5 * one


def largest(terms: Terms) -> str:
    return max(asdict(terms).items(), key=lambda term: term[1])[0]


def test_weights_bind_a_small_batch_and_the_answer_says_so(estimator: ServingEstimator) -> None:
    step = _step(estimator, deployment(layout=Layout(tp=1), precision="bf16"))
    assert largest(step.terms(BatchShape(decode=1, decode_context=1000))) == "weights"
    long = BatchShape(decode=16, decode_context=16 * 120_000)
    assert largest(step.terms(long)) == "attention"


def test_leaving_the_domain_costs(estimator: ServingEstimator) -> None:
    h100 = _step(estimator, deployment(layout=Layout(tp=16)))
    rack = _step(estimator, deployment(gpu="gb200", layout=Layout(tp=16)))
    shape = BatchShape(decode=32, decode_context=32_000)
    assert h100.terms(shape).communication > 2 * rack.terms(shape).communication


def test_experts_touched_grow_towards_all(estimator: ServingEstimator) -> None:
    d = deployment(MODELS[1], "h200_sxm", layout=Layout(tp=8, ep=8))
    step = _step(estimator, d)
    few, some, many = (step.terms(BatchShape(decode=n, decode_context=n)).experts for n in (1, 16, 256))
    assert few < some < many < 256 * few


def test_unmeasured_things_widen_the_interval(estimator: ServingEstimator) -> None:
    def width(d: Deployment) -> float:
        found = estimator.estimate(d).tpot
        return found.high / found.low

    known = deployment(gpu="h100_sxm")
    assert width(replace(known, backend="unheard-of")) > width(known)
    guessed = replace(known, model=guess_work("somebody/Something-70B"))
    assert width(guessed) > width(known)


def test_more_offered_than_fits_waits(estimator: ServingEstimator) -> None:
    d = deployment(layout=Layout(tp=2), lengths=(8192, 1024), concurrency=16)
    calm, full = estimator.estimate(d), estimator.estimate(replace(d, concurrency=128))
    assert full.outcome.running <= full.outcome.admitted < full.outcome.offered
    assert full.ttft.mean > 20 * calm.ttft.mean
    limited = estimator.estimate(replace(d, concurrency=16, running_limit=4))
    assert limited.outcome.wait > 0


def test_guessed_sizes_come_from_the_name() -> None:
    moe = guess_work("lab/Model-120B-A12B-Instruct")
    assert moe.total_weights == pytest.approx(120e9, rel=0.1)
    assert active_weights(moe) == pytest.approx(12e9, rel=0.15)
    assert moe.top_k > 0
    dense = guess_work("lab/tiny-1.5b")
    assert dense.total_weights == pytest.approx(1.5e9, rel=0.3)
    assert guess_work("nothing to go by").total_weights == pytest.approx(70e9, rel=0.1)


def test_shares_of_peak_stay_below_one() -> None:
    for name in NAMES:
        value = getattr(PRIOR, name)
        assert from_link(name, to_link(name, value)) == pytest.approx(value)
        if name in SHARES:
            assert from_link(name, 50.0) <= 1.0


def test_terms_add_up_for_arrays(estimator: ServingEstimator) -> None:
    step = _step(estimator, deployment())
    work: PoolWork = step.work
    found = decode_terms(work, step.constants, np.array([1.0, 8.0, 64.0]), np.array([1e3, 1e3, 1e3]))
    assert np.all(np.diff(found.total) > 0)


def test_bad_shapes_and_deployments_name_the_field() -> None:
    with pytest.raises(SpecError, match=r"batch\.decode"):
        BatchShape(decode=-1)
    with pytest.raises(SpecError, match=r"batch\.prefill"):
        BatchShape(prefill=((0, 4),))
    with pytest.raises(SpecError, match=r"deployment\.concurrency"):
        deployment(concurrency=0)
    with pytest.raises(SpecError, match="precision"):
        ServingEstimator().estimate(deployment(precision="fp3"))
