"""One rule of the scheduler a test: refusals, endings, plans in flight, drafts, settings."""

import math

import pytest
from scheduler_steps import answer, config, request, rows, step

from scheduler_world import World, oracle
from shoal.policy.batching import Request, RequestRefused, RequestTooLong, SampledSequence, Scheduler, StepResult

# Endings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ()}, "prompt has no tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens is 3"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, object], message: str) -> None:
    scheduler = Scheduler(config())
    with pytest.raises(RequestRefused, match=message):
        scheduler.add(request(0, **fields), 0)
    assert not scheduler.has_work()


def test_too_long_a_prompt_is_refused_with_the_figures() -> None:
    scheduler = Scheduler(config(max_model_len=20))
    with pytest.raises(RequestTooLong, match=r"20 tokens.*max_model_len 20.*at most 19"):
        scheduler.add(request(0, 20), 0)
    scheduler.add(request(1, 19), 0)
    small = Scheduler(config(num_blocks=4))
    with pytest.raises(RequestTooLong, match=r"13 tokens.*needs 4 KV blocks of 4.*has 3.*at most 12"):
        small.add(request(0, 13), 0)
    small.add(request(1, 12), 0)


def test_live_id_is_refused_until_its_last_plan_is_over() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0), 0)
    plan = scheduler.schedule(0)
    assert plan is not None
    scheduler.abort(0)
    with pytest.raises(RequestRefused, match="id 0"):
        scheduler.add(request(0), 0)
    scheduler.complete(plan, answer(plan), 0)
    scheduler.add(request(0), 0)
    again = scheduler.schedule(0)
    assert again is not None
    assert again.sequences[0].reset
    assert again.finished == (), "a reset replaces what the ranks knew"


@pytest.mark.parametrize(("num_blocks", "max_model_len", "length"), [(65, 10, 10), (3, 128, 9)])
def test_context_or_pool_outgrown_ends_with_length(num_blocks: int, max_model_len: int, length: int) -> None:
    world = World(config(num_blocks=num_blocks, max_model_len=max_model_len))
    world.add(Request(id=0, prompt=(1, 2, 3)))
    world.drain()
    assert world.finished[0].finish_reason == "length"
    assert 3 + len(world.outputs[0]) == length


def test_rank_error_ends_one_request_and_keeps_its_kv_out_of_the_cache() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0, 8), 0)
    scheduler.add(request(1, 8), 0)
    plan = scheduler.schedule(0)
    assert plan is not None
    result = StepResult(
        plan.step, (SampledSequence(0, (), error="logits are not finite"), SampledSequence(1, (5,)))
    )
    outputs = scheduler.complete(plan, result, 0)
    assert [(o.request_id, o.finish_reason, o.error) for o in outputs] == [
        (0, "error", "logits are not finite"),
        (1, None, None),
    ]
    scheduler.check()
    assert scheduler.stats().blocks_cached == 0
    assert scheduler.stats().blocks_owned == 2


@pytest.mark.parametrize("tokens", [(), (1, 2)])
def test_result_that_does_not_fit_the_plan_ends_the_request_with_an_error(tokens: tuple[int, ...]) -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0), 0)
    plan = scheduler.schedule(0)
    assert plan is not None
    (output,) = scheduler.complete(plan, StepResult(plan.step, (SampledSequence(0, tokens),)), 0)
    assert output.finish_reason == "error"
    assert not scheduler.has_work()


def test_result_of_an_unknown_step_is_refused() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0), 0)
    plan = scheduler.schedule(0)
    assert plan is not None
    with pytest.raises(ValueError, match="step 9"):
        scheduler.complete(plan, StepResult(9, ()), 0)
    scheduler.complete(plan, answer(plan), 0)
    with pytest.raises(ValueError, match="in flight"):
        scheduler.complete(plan, answer(plan), 0)


def test_finish_at_a_stop_string_gives_the_last_output_and_frees() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0), 3.0)
    step(scheduler, 4.0)
    output = scheduler.finish(0, "stop")
    assert output is not None
    assert (output.finish_reason, output.tokens) == ("stop", ())
    assert (output.times.arrival, output.times.first_scheduled, output.times.first_token) == (3.0, 4.0, 4.0)
    assert scheduler.finish(0, "stop") is None
    assert scheduler.abort(99) is None
    assert not scheduler.has_work()
    assert scheduler.stats().blocks_owned == 0


def test_ranks_are_told_once_what_to_drop() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0, max_tokens=1), 0)
    scheduler.add(request(1, max_tokens=3), 0)
    step(scheduler)
    assert step(scheduler).finished == (0,)
    assert step(scheduler).finished == ()


# Plans in flight


def test_plans_in_flight_share_the_sequences() -> None:
    scheduler = Scheduler(config(max_plans_in_flight=3))
    for i in range(5):
        scheduler.add(request(i, 2), 0)
    plans = [scheduler.schedule(0) for _ in range(3)]
    assert [[i for i, _, _ in rows(plan)] for plan in plans] == [[0, 1], [2, 3], [4]]
    assert [plan.micro_batch for plan in plans if plan is not None] == [0, 1, 2]
    assert scheduler.schedule(0) is None
    assert plans[1] is not None
    scheduler.complete(plans[1], answer(plans[1]), 0)
    again = scheduler.schedule(0)
    assert again is not None
    assert again.micro_batch == 1
    assert [i for i, _, _ in rows(again)] == [2, 3]


def test_sequence_in_flight_is_never_a_victim() -> None:
    scheduler = Scheduler(config(num_blocks=3, max_plans_in_flight=2, headroom=0.0))
    scheduler.add(request(0, 4, max_tokens=9), 0)
    scheduler.add(request(1, 4, max_tokens=9), 1)
    first, second = scheduler.schedule(1), scheduler.schedule(1)
    assert first is not None
    assert second is not None
    scheduler.complete(first, answer(first), 1)
    # Request 0 needs a block; 1, which ranks below, holds the other but a plan writes to it.
    assert scheduler.schedule(1) is None
    assert scheduler.stats().preemptions == 0
    scheduler.complete(second, answer(second), 1)
    third = scheduler.schedule(1)
    assert rows(third) == [(0, 4, 1)]
    assert scheduler.stats().preemptions == 1


# Drafts


def test_right_drafts_are_taken_and_wrong_ones_computed_again() -> None:
    world = World(config())
    world.add(Request(id=0, prompt=(1, 2, 3), max_tokens=10))
    world.step()
    assert world.propose(0, right=2, wrong=1)
    (output,) = world.step()
    assert world.plans[-1].sequences[0].drafts == 3
    assert len(output.tokens) == 3
    world.step()
    assert world.plans[-1].sequences[0].start == 3 + 4 - 1
    world.drain()
    assert world.outputs[0] == oracle(world.requests[0], world.config)[0]


def test_drafts_never_go_past_the_end_or_the_budget() -> None:
    scheduler = Scheduler(config(token_budget=4))
    scheduler.add(request(0, 3, max_tokens=8), 0)
    step(scheduler)
    assert scheduler.propose(0, (1, 2, 3, 4, 5))
    plan = scheduler.schedule(0)
    assert rows(plan) == [(0, 3, 4)]
    assert plan is not None
    scheduler.complete(plan, StepResult(plan.step, (SampledSequence(0, (1, 2, 3, 9)),)), 0)
    assert scheduler.propose(0, (1, 2, 3, 4, 5))
    plan = scheduler.schedule(0)
    assert plan is not None
    assert plan.sequences[0].drafts == 2, "three tokens may still come: two drafts and one sampled"


def test_drafts_are_for_ready_sequences_only() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0), 0)
    assert not scheduler.propose(0, (1,))
    plan = scheduler.schedule(0)
    assert not scheduler.propose(0, (1,))
    assert plan is not None
    scheduler.complete(plan, answer(plan), 0)
    assert scheduler.propose(0, (1,))
    assert not scheduler.propose(5, (1,))


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_blocks", 1),
        ("block_size", 0),
        ("max_model_len", 1),
        ("token_budget", 0),
        ("max_sequences", 0),
        ("max_plans_in_flight", 0),
        ("chunk_size", 0),
        ("headroom", -0.5),
        ("headroom", math.nan),
        ("starvation_bound", -1.0),
    ],
)
def test_settings_name_what_is_wrong(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        config(**{name: value})
