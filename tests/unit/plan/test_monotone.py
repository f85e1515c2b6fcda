"""More demand never gets a smaller or cheaper answer, and one demand has one answer (issue 14, faults 8 and 9)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan.api import ask
from shoal.plan.designs import Design, Plan
from shoal.plan.load_grid import prompt_lengths
from shoal.plan.search import search

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b")
BASE = {
    "users": 100.0,
    "input_tokens": 4096.0,
    "output_tokens": 256.0,
    "ttft": 3.0,
    "tpot": 0.05,
    "percentile": 50.0,
}
STRICTER = {
    "users": st.tuples(st.floats(1, 2000), st.floats(1.0, 3.0)),
    "input_tokens": st.tuples(st.floats(128, 9_000), st.floats(1.0, 4.0)),
    "ttft": st.tuples(st.floats(0.3, 20), st.floats(0.3, 1.0)),
    "tpot": st.tuples(st.floats(0.012, 0.2), st.floats(0.3, 1.0)),
    "percentile": st.tuples(st.floats(50, 80), st.floats(1.0, 1.2)),
}
"""(value, factor towards more demand) of each figure of a question."""


def _best(model: str, gpu: tuple[str, ...], figures: dict[str, float], **more: object) -> Design | None:
    return search(ask(model, gpu=gpu, **figures, **more)).best  # type: ignore[arg-type]


def _dollars(design: Design) -> float:
    assert design.cost is not None
    return design.cost.per_hour


@pytest.mark.parametrize("figure", sorted(STRICTER))
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_more_demand_never_takes_fewer_devices_or_less_money(figure: str, data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    gpu = data.draw(st.sampled_from([("h100",), ("h200",), ("mi300x",), ("h100", "mi355x")]))
    value, factor = data.draw(STRICTER[figure])
    less = _best(model, gpu, {**BASE, figure: value})
    more = _best(model, gpu, {**BASE, figure: value * factor})
    if less is None:
        assert more is None, "nothing meets the smaller question and something the larger"
        return
    if more is None:
        return
    assert _dollars(more) >= _dollars(less) - 1e-9, (less.name, more.name)
    if len(gpu) == 1:
        assert more.devices >= less.devices, (less.name, more.name)


def test_seventy_billion_on_h100_grows_with_its_users() -> None:
    counts = []
    for users in (50, 80, 100, 105, 110, 120, 150, 200, 400):
        best = _best("llama-3.1-70b", ("h100",), {"users": float(users), "context": 8192.0})
        assert best is not None
        counts.append(best.devices)
    assert counts == sorted(counts)


def _as_rate(plan: Plan) -> Plan:
    """The same demand as requests per second, each design's own."""
    best = plan.best
    assert best is not None
    load = plan.question.workload
    rate = best.tokens_per_second.mean / load.output.mean
    return search(replace(plan.question, workload=replace(load, users=None, rate=rate)))


@settings(max_examples=6, deadline=None)
@given(
    users=st.floats(5, 1500), tokens=st.floats(256, 12_000), split=st.sampled_from(["never", "only"]),
    headroom=st.sampled_from([0.0, 0.1, 0.3]), model=st.sampled_from(MODELS),
)  # fmt: skip
def test_users_and_the_rate_they_make_get_the_same_answer(
    users: float, tokens: float, split: str, headroom: float, model: str
) -> None:
    question = ask(
        model, gpu=["h100"], users=users, input_tokens=tokens, output_tokens=256, headroom=headroom,
        split=split,  # type: ignore[arg-type]
    )  # fmt: skip
    by_users = search(question)
    if by_users.best is None:
        return
    again = _as_rate(by_users)
    same = [d for d in again.designs if _shape(d) == _shape(by_users.best)]
    assert same, "the design of the users is one of the rate's"
    if split == "never":
        assert same[0].replicas == by_users.best.replicas
    else:
        # The pair's other proportions of workers hold fewer requests in flight at that rate, and may need fewer
        # devices.
        assert same[0].devices <= by_users.best.devices


def _shape(design: Design) -> tuple[object, ...]:
    return design.layout, design.prefill, design.weights, design.kv_dtype, design.accelerator.name


def test_a_context_and_its_two_parts_are_one_question() -> None:
    whole = _best("llama-3.1-70b", ("h100",), {"users": 60.0, "context": 8192.0})
    parts = _best("llama-3.1-70b", ("h100",), {"users": 60.0, "input_tokens": 7680.0, "output_tokens": 512.0})
    assert whole == parts


@pytest.mark.parametrize("split", ["never", "only"])
def test_headroom_costs_every_pool_alike(split: str) -> None:
    def pools(headroom: float) -> tuple[int, int]:
        question = ask(
            "llama-3.1-70b", gpu=["h100"], users=3000, context=8192, headroom=headroom, weights=["fp8"],
            kv_dtypes=["fp8"], split=split,  # type: ignore[arg-type]
        )  # fmt: skip
        design = min(search(question).designs, key=lambda d: (d.devices, d.name))
        first = design.prefill.world * design.prefill_replicas if design.prefill else 0
        return design.layout.world * design.replicas, first

    free, kept = pools(0.0), pools(0.5)
    for before, after in zip(free, kept, strict=True):
        if before:
            # Half of a pool's capacity kept free doubles it, up to a worker of rounding and a usable request.
            assert after / before == pytest.approx(2.0, rel=0.15)


def test_prompt_lengths_surround_the_question_and_are_shared() -> None:
    assert prompt_lengths(1000) == (64, 128, 256, 512, 1024)
    assert prompt_lengths(1024) == (128, 256, 512, 1024, 2048)
    assert prompt_lengths(1) == (1, 2)
