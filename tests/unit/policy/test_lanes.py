"""Lanes: every request ends once with its own tokens, books balance, loads stay even, prefixes find their lane."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.batching import (
    LaneScheduler,
    Output,
    Request,
    RequestRefused,
    SampledSequence,
    SchedulerConfig,
    StepPlan,
    StepResult,
)


def config(**changes: object) -> SchedulerConfig:
    settings = {"num_blocks": 20, "block_size": 4, "max_model_len": 48, "token_budget": 16, **changes}
    return SchedulerConfig(**settings)  # type: ignore[arg-type]


def request(number: int, prompt: tuple[int, ...], max_tokens: int = 4) -> Request:
    return Request(id=number, prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def answer(wave: StepPlan) -> StepResult:
    """Each sequence's next token is a function of its id alone."""
    return StepResult(
        wave.step,
        tuple(SampledSequence(s.sequence_id, (1000 + s.sequence_id,) if s.sample else ()) for s in wave.sequences),
    )


def lane_of(wave: StepPlan, number: int) -> int:
    return next(i for i, plan in enumerate(wave.lanes) if any(s.sequence_id == number for s in plan.sequences))


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 3),
    in_flight=st.integers(1, 3),
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=14),
    gaps=st.lists(st.integers(0, 3), min_size=14, max_size=14),
    aborts=st.dictionaries(st.integers(1, 30), st.integers(0, 13), max_size=6),
)
def test_every_request_ends_once_and_nothing_leaks(
    lanes: int, in_flight: int, prompts: list[list[int]], gaps: list[int], aborts: dict[int, int]
) -> None:
    scheduler = LaneScheduler(config(max_plans_in_flight=in_flight), lanes)
    pending = [request(i, tuple(prompt)) for i, prompt in enumerate(prompts)]
    ended: dict[int, Output] = {}
    tokens: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    flying: list[StepPlan] = []
    arrivals = list(accumulate(gaps))
    now = 0
    while pending or scheduler.has_work():
        now += 1
        assert now < 2000, "it never ends"
        while pending and arrivals[pending[0].id] < now:
            scheduler.add(pending.pop(0), now)
        while (wave := scheduler.schedule(now)) is not None:
            assert len(wave.lanes) == lanes
            assert wave.sequences == tuple(s for plan in wave.lanes for s in plan.sequences)
            assert wave.sequences
            flying.append(wave)
        assert len({w.micro_batch for w in flying}) == len(flying) <= in_flight
        assert flying or not scheduler.has_work()
        news: list[Output] = []
        if now in aborts:
            output = scheduler.abort(aborts[now])
            news += [output] if output is not None else []
        if flying:
            wave = flying.pop(0)
            news += scheduler.complete(wave, answer(wave), now)
        for output in news:
            assert output.request_id not in ended
            tokens[output.request_id] += output.tokens
            if output.finish_reason is not None:
                ended[output.request_id] = output
        scheduler.check()
    assert sorted(ended) == list(range(len(prompts)))
    for number, output in ended.items():
        assert set(tokens[number]) <= {1000 + number}
        assert output.finish_reason == "abort" or len(tokens[number]) == 4
    stats = scheduler.stats()
    assert (stats.blocks_owned, stats.waiting, stats.running, stats.finished) == (0, 0, 0, len(prompts))


def test_requests_go_to_the_least_loaded_lane_and_idle_lanes_get_an_empty_plan() -> None:
    scheduler = LaneScheduler(config(), 3)
    scheduler.add(request(0, (1, 2)), 0.0)
    wave = scheduler.schedule(0.0)
    assert wave is not None
    assert [len(plan.sequences) for plan in wave.lanes] == [1, 0, 0]
    scheduler.complete(wave, answer(wave), 1.0)
    for number in range(1, 6):
        scheduler.add(request(number, (number + 2, 2)), 1.0)
    wave = scheduler.schedule(1.0)
    assert wave is not None
    assert [len(plan.sequences) for plan in wave.lanes] == [2, 2, 2]


def test_a_prefix_finds_its_lane_until_that_lane_has_too_much() -> None:
    scheduler = LaneScheduler(config(num_blocks=60), 2)
    shared = (7, 7, 7, 7)
    for number in range(6):
        scheduler.add(request(number, (*shared, number)), 0.0)
    computing = scheduler.schedule(0.0)
    assert computing is not None
    scheduler.complete(computing, answer(computing), 0.0)
    sharing = scheduler.schedule(1.0)
    assert sharing is not None
    assert [len(plan.sequences) for plan in sharing.lanes] == [3, 3]
    scheduler.add(request(6, (*shared, 9)), 0.0)
    other = Request(id=7, prompt=(*shared, 9), max_tokens=4, cache_salt="someone else's")
    scheduler.add(other, 0.0)
    assert (scheduler.stats().running, scheduler.stats().waiting) == (6, 2)


def test_what_a_lane_refuses_leaves_no_trace() -> None:
    scheduler = LaneScheduler(config(), 2)
    with pytest.raises(RequestRefused):
        scheduler.add(request(0, tuple(range(100))), 0.0)
    scheduler.add(request(1, (1,)), 0.0)
    with pytest.raises(RequestRefused, match="id 1"):
        scheduler.add(request(1, (2,)), 0.0)
    scheduler.check()
    assert not LaneScheduler(config(), 2).has_work()
    with pytest.raises(ValueError, match="lanes is 0"):
        LaneScheduler(config(), 0)
