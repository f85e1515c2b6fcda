"""One rule of the scheduler a test: order of service, budget, chunks, sharing, preemption."""

import pytest
from scheduler_steps import answer, config, request, rows, step

from scheduler_world import World
from shoal.policy.batching import BlockStored, Request, Scheduler

# Budget and order


def test_prefill_and_decode_share_one_budget_and_running_goes_first() -> None:
    scheduler = Scheduler(config(token_budget=8))
    scheduler.add(request(0, 6), 0)
    assert rows(step(scheduler)) == [(0, 0, 6)]
    scheduler.add(request(1, 20), 0)
    assert rows(step(scheduler)) == [(0, 6, 1), (1, 0, 7)]
    assert rows(step(scheduler)) == [(0, 7, 1), (1, 7, 7)]


def test_chunk_size_caps_one_sequence_and_leaves_budget_to_others() -> None:
    scheduler = Scheduler(config(token_budget=100, chunk_size=5))
    scheduler.add(request(0, 12), 0)
    scheduler.add(request(1, 3), 0)
    plan = step(scheduler)
    assert rows(plan) == [(0, 0, 5), (1, 0, 3)]
    assert [share.sample for share in plan.sequences] == [False, True]
    assert rows(step(scheduler)) == [(0, 5, 5), (1, 3, 1)]
    assert rows(step(scheduler)) == [(0, 10, 2), (1, 4, 1)]


def test_those_a_step_leaves_out_are_first_in_the_next() -> None:
    scheduler = Scheduler(config(token_budget=4))
    for i in range(4):
        scheduler.add(request(i, 1, max_tokens=50), 0)
    assert [i for i, _, _ in rows(step(scheduler))] == [0, 1, 2, 3]
    scheduler.propose(0, (1, 2, 3))
    assert rows(step(scheduler)) == [(0, 1, 4)]
    assert rows(step(scheduler)) == [(1, 1, 1), (2, 1, 1), (3, 1, 1), (0, 2, 1)]


def test_a_full_budget_admits_nobody() -> None:
    scheduler = Scheduler(config(token_budget=2))
    for i in range(4):
        scheduler.add(request(i, 1, max_tokens=3), 0)
    assert [[i for i, _, _ in rows(step(scheduler))] for _ in range(6)] == [[0, 1]] * 3 + [[2, 3]] * 3


def test_lower_priority_number_is_served_first_then_arrival() -> None:
    scheduler = Scheduler(config(max_sequences=1))
    scheduler.add(request(0, priority=1), 0)
    scheduler.add(request(1, priority=0), 1)
    scheduler.add(request(2, priority=0, arrival=0.5), 2)
    order = []
    while scheduler.has_work():
        order += [i for i, start, _ in rows(step(scheduler, 2)) if start == 0]
    assert order == [2, 1, 0]


def test_request_that_waited_too_long_outranks_priority() -> None:
    scheduler = Scheduler(config(max_sequences=1, starvation_bound=10.0))
    scheduler.add(request(0, priority=5), 0)
    scheduler.add(request(1, priority=0), 8)
    assert scheduler.schedule(10.5).sequences[0].sequence_id == 0  # type: ignore[union-attr]
    young = Scheduler(config(max_sequences=1, starvation_bound=10.0))
    young.add(request(0, priority=5), 0)
    young.add(request(1, priority=0), 8)
    assert young.schedule(10.0).sequences[0].sequence_id == 1  # type: ignore[union-attr]


def test_large_request_first_in_line_is_not_passed_by_small_ones() -> None:
    scheduler = Scheduler(config(num_blocks=9, headroom=0.0))
    scheduler.add(request(0, 16, max_tokens=4), 0)
    step(scheduler)
    scheduler.add(request(1, 28), 1)
    scheduler.add(request(2, 2), 2)
    while scheduler.stats().running:
        assert [i for i, _, _ in rows(step(scheduler, 3))] == [0]
    assert rows(step(scheduler, 4))[0][0] == 1


# Prefix reuse and copy-on-write


def test_prefix_is_reused_in_whole_blocks() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0, prompt=tuple(range(10)), max_tokens=1), 0)
    step(scheduler)
    scheduler.add(request(1, prompt=(*range(10), 77), max_tokens=1), 0)
    plan = scheduler.schedule(0)
    assert rows(plan) == [(1, 8, 3)]
    assert plan is not None
    assert plan.sequences[0].blocks[:2] == (1, 2)
    assert plan.copies == ()
    (output,) = scheduler.complete(plan, answer(plan), 0)
    assert output.cached_tokens == 8
    assert scheduler.stats().hit_tokens == 8
    assert scheduler.stats().queried_tokens == 21


def test_copy_source_is_held_until_the_plan_is_completed() -> None:
    scheduler = Scheduler(config(num_blocks=5, max_plans_in_flight=2))
    scheduler.add(request(0, prompt=tuple(range(8)), max_tokens=1), 0)
    step(scheduler)
    scheduler.add(request(1, prompt=tuple(range(8)), max_tokens=1), 0)
    plan = scheduler.schedule(0)
    assert plan is not None
    ((source, target),) = plan.copies
    assert rows(plan) == [(1, 7, 1)]
    assert plan.sequences[0].blocks == (1, target)
    assert scheduler.stats().blocks_owned == 3
    scheduler.check()
    scheduler.abort(1)
    assert scheduler.stats().blocks_owned == 3
    scheduler.complete(plan, answer(plan), 0)
    assert scheduler.stats().blocks_owned == 0
    scheduler.check()
    assert source != target


def test_copy_that_does_not_fit_is_computed_instead() -> None:
    scheduler = Scheduler(config(num_blocks=3))
    for i in range(2):
        scheduler.add(request(i, prompt=tuple(range(8)), max_tokens=1), 0)
    step(scheduler)
    plan = scheduler.schedule(0)
    assert plan is not None
    assert plan.copies == ()
    assert rows(plan) == [(1, 4, 4)]


def test_children_of_one_prompt_wait_for_the_first_and_share_it() -> None:
    scheduler = Scheduler(config(token_budget=8))
    for i in range(4):
        scheduler.add(request(i, prompt=tuple(range(18)), max_tokens=3), 0)
    assert rows(step(scheduler)) == [(0, 0, 8)]
    assert rows(step(scheduler)) == [(0, 8, 8)]
    assert rows(step(scheduler)) == [(0, 16, 2), (1, 16, 2), (2, 16, 2), (3, 16, 2)]
    assert scheduler.stats().scheduled_tokens == 24


def test_others_pass_those_that_wait_for_a_prefix() -> None:
    scheduler = Scheduler(config())
    for i in range(2):
        scheduler.add(request(i, prompt=tuple(range(8))), 0)
    scheduler.add(request(2, 3), 0)
    assert [i for i, _, _ in rows(step(scheduler))] == [0, 2]


def test_prefix_caching_can_be_off() -> None:
    scheduler = Scheduler(config(prefix_caching=False))
    for i in range(2):
        scheduler.add(request(i, prompt=tuple(range(8)), max_tokens=1), 0)
    assert rows(step(scheduler)) == [(0, 0, 8), (1, 0, 8)]
    assert scheduler.stats().blocks_cached == 0
    assert scheduler.stats().queried_tokens == 0


def test_forgotten_prefixes_are_computed_again() -> None:
    scheduler = Scheduler(config())
    scheduler.add(request(0, prompt=tuple(range(9)), max_tokens=1), 0)
    step(scheduler)
    assert scheduler.stats().blocks_cached == 2
    scheduler.reset_prefix_cache()
    assert scheduler.stats().blocks_cached == 0
    scheduler.add(request(1, prompt=tuple(range(9)), max_tokens=1), 0)
    assert rows(step(scheduler)) == [(1, 0, 9)]


def test_events_follow_the_chain_and_name_the_adapter() -> None:
    scheduler = Scheduler(config(record_events=True))
    scheduler.add(request(0, prompt=tuple(range(9)), lora="x"), 0)
    step(scheduler)
    first, second = scheduler.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.parent_block_hash is None
    assert second.parent_block_hash == first.block_hashes[0]
    assert first.token_ids + second.token_ids == tuple(range(8))
    assert (first.block_size, first.lora_name) == (4, "x")


# Preemption


@pytest.mark.parametrize(
    ("priorities", "arrivals", "victim"),
    [((0, 3, 0), (0, 0, 1), 1), ((0, 0, 0), (0, 2, 1), 1), ((0, 0, 0), (0, 1, 1), 2), ((5, 0, 0), (0, 0, 0), 0)],
)
def test_victim_is_the_least_urgent_then_the_last_to_arrive(
    priorities: tuple[int, ...], arrivals: tuple[float, ...], victim: int
) -> None:
    scheduler = Scheduler(config(num_blocks=4, headroom=0.0))
    for i in range(3):
        length = 4 if i == 0 else 2
        scheduler.add(request(i, length, max_tokens=20, priority=priorities[i], arrival=arrivals[i]), 2)
    assert len(rows(step(scheduler, 2))) == 3
    plan = step(scheduler, 2)  # request 0 needs a second block
    assert plan.finished == (victim,)
    assert sorted(i for i, _, _ in rows(plan)) == [i for i in range(3) if i != victim]


def test_preempted_request_resumes_with_its_output_and_its_cached_prefix() -> None:
    world = World(config(num_blocks=7, headroom=0.0))
    world.add(Request(id=0, prompt=tuple(range(9)), max_tokens=11))
    world.add(Request(id=1, prompt=tuple(range(20, 29)), max_tokens=11))
    world.drain()
    assert world.scheduler.stats().preemptions > 0
    resumed = [s for p in world.plans for s in p.sequences if s.reset and s.output]
    assert resumed
    assert all(share.start > 0 for share in resumed), "nothing was reused"


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    scheduler = Scheduler(config(num_blocks=5, headroom=0.0))
    scheduler.add(request(0, 8, max_tokens=20), 0)
    scheduler.add(request(1, 8, max_tokens=20), 1)
    step(scheduler, 1)
    scheduler.add(request(2, 1), 2)
    plan = step(scheduler, 2)
    assert rows(plan) == [(0, 8, 1)]
    assert plan.finished == (1,)
    assert scheduler.stats().waiting == 2


def test_share_of_a_preempted_sequence_is_refunded() -> None:
    scheduler = Scheduler(config(num_blocks=13, token_budget=8, headroom=0.0))
    scheduler.add(request(0, 5, max_tokens=20, priority=1), 0)
    plans = [step(scheduler)]
    scheduler.add(request(1, 7, max_tokens=20), 0)
    scheduler.add(request(2, 30, max_tokens=2), 0)
    while scheduler.stats().preemptions == 0:
        plans.append(step(scheduler))
    # Request 0 had its row in the last step when 1, after it and more urgent, took its blocks; 2 got the row.
    assert [rows(plan) for plan in plans[-2:]] == [[(0, 6, 1), (1, 7, 1), (2, 0, 6)], [(1, 8, 1), (2, 6, 7)]]
    assert scheduler.stats().scheduled_tokens == sum(plan.num_tokens for plan in plans)
    assert scheduler.stats().blocks_owned == 11
    # The row would have filled a block: nobody may wait for that one now, least of all request 0 itself.
    while scheduler.has_work():
        step(scheduler)
    assert scheduler.stats().finished == 3


def test_guess_never_preempts() -> None:
    scheduler = Scheduler(config(num_blocks=5, headroom=0.0))
    scheduler.add(request(0, 6, max_tokens=9), 0)
    scheduler.add(request(1, 6, max_tokens=9), 0)
    step(scheduler)
    assert scheduler.propose(0, (1, 2, 3))
    plan = step(scheduler)
    assert scheduler.stats().preemptions == 0
    assert [share.drafts for share in plan.sequences] == [0, 0]
