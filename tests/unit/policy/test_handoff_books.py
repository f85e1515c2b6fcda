"""Blocks that cross between replicas, and requests that begin with output: what the books say of them."""

import pytest

from shoal.policy.batching import (
    HeldPrefix,
    PrefixHasher,
    Request,
    RequestRefused,
    SampledSequence,
    Scheduler,
    SchedulerConfig,
    StepResult,
)

SIZE = 4


def scheduler(num_blocks: int = 20, **changes: object) -> Scheduler:
    config = {"num_blocks": num_blocks, "block_size": SIZE, "max_model_len": 200, "headroom": 0.0} | changes
    return Scheduler(SchedulerConfig(**config))  # type: ignore[arg-type]


def run(made: Scheduler, tokens: int = 1) -> list[int]:
    """Steps until nothing is left, each sampling token 7; how many rows every step computed."""
    rows = []
    while (plan := made.schedule(0.0)) is not None:
        rows.append(plan.num_tokens)
        sampled = tuple(SampledSequence(s.sequence_id, (7,) if s.sample else ()) for s in plan.sequences)
        made.complete(plan, StepResult(plan.step, sampled), 0.0)
        made.check()
    return rows


def test_blocks_are_held_until_they_are_released() -> None:
    made = scheduler()
    prompt = tuple(range(10))
    made.add(Request(id=1, prompt=prompt, max_tokens=1, hand_off=True), 0.0)
    run(made)
    held = made.handoffs.get(1)
    assert held == HeldPrefix(1, held.blocks if held else (), tuple(PrefixHasher(SIZE).hashes(prompt)))
    assert held is not None
    assert len(held.blocks) == 2, "full blocks of the prompt only"
    assert made.stats().blocks_owned == 2
    # Whatever comes, they are not given to anybody else.
    made.add(Request(id=2, prompt=tuple(range(100, 160)), max_tokens=2), 0.0)
    run(made)
    assert [made.handoffs.known(held.hashes), made.stats().blocks_owned] == [2, 2]
    assert made.handoffs.release(1)
    assert not made.handoffs.release(1)
    made.check()
    assert made.stats().blocks_owned == 0
    assert made.handoffs.known(held.hashes) == 2, "they stay cached"


@pytest.mark.parametrize("end", ["abort", "error"])
def test_nothing_is_held_of_what_did_not_end_well(end: str) -> None:
    made = scheduler()
    made.add(Request(id=1, prompt=tuple(range(10)), max_tokens=5, hand_off=True), 0.0)
    plan = made.schedule(0.0)
    assert plan is not None
    made.complete(plan, StepResult(plan.step, (SampledSequence(1, (7,)),)), 0.0)
    made.finish(1, end)  # type: ignore[arg-type]
    made.check()
    assert made.handoffs.get(1) is None
    assert made.stats().blocks_owned == 0


def test_what_comes_from_elsewhere_is_used_like_ones_own() -> None:
    made = scheduler()
    prompt = tuple(range(11))
    hashes = PrefixHasher(SIZE).hashes(prompt)
    for first in range(2):
        blocks = made.handoffs.begin(1)
        assert blocks is not None
        made.check()
        made.handoffs.store(blocks, first, hashes, prompt)
        made.check()
    assert made.stats().blocks_cached == 2
    made.add(Request(id=1, prompt=prompt, max_tokens=1), 0.0)
    assert run(made) == [3], "the rest after two blocks"
    # A second time the same: the ones that are there stay, the others are free again.
    again = made.handoffs.begin(2)
    assert again is not None
    made.handoffs.store(again, 0, hashes, prompt)
    made.check()
    assert made.stats().blocks_owned == 0


def test_a_transfer_takes_no_more_than_is_available() -> None:
    made = scheduler(num_blocks=6)
    assert made.handoffs.begin(6) is None
    blocks = made.handoffs.begin(5)
    assert blocks is not None
    made.check()
    made.handoffs.drop(blocks)
    made.check()
    assert made.stats().blocks_free == 5


def test_a_request_with_output_goes_on_after_it() -> None:
    made = scheduler()
    made.add(Request(id=1, prompt=(1, 2, 3), output=(4, 5, 6), max_tokens=5), 0.0)
    plan = made.schedule(0.0)
    assert plan is not None
    (entry,) = plan.sequences
    assert (entry.tokens, entry.output, entry.sample) == ((1, 2, 3, 4, 5, 6), (4, 5, 6), True)
    (output,) = made.complete(plan, StepResult(plan.step, (SampledSequence(1, (8,)),)), 0.0)
    assert (output.prompt_tokens, output.tokens, output.finish_reason) == (3, (8,), None)
    plan = made.schedule(0.0)
    assert plan is not None
    (output,) = made.complete(plan, StepResult(plan.step, (SampledSequence(1, (9,)),)), 0.0)
    assert output.finish_reason == "length", "five with the three it began with"
    made.check()


def test_cached_tokens_of_a_request_with_output_are_the_prompts() -> None:
    made = scheduler()
    made.add(Request(id=1, prompt=tuple(range(12)), max_tokens=1), 0.0)
    run(made)
    made.add(Request(id=2, prompt=tuple(range(5)), output=tuple(range(5, 12)), max_tokens=9), 0.0)
    plan = made.schedule(0.0)
    assert plan is not None
    (output,) = made.complete(plan, StepResult(plan.step, (SampledSequence(2, (8,)),)), 0.0)
    assert (output.prompt_tokens, output.cached_tokens) == (5, 5)


@pytest.mark.parametrize(("output", "limits"), [(5, {"max_tokens": 5}), (197, {}), (76, {})])
def test_output_that_leaves_nothing_to_come_is_refused(output: int, limits: dict[str, int]) -> None:
    made = scheduler()
    with pytest.raises(RequestRefused, match="leave one to come"):
        made.add(Request(id=1, prompt=(1, 2, 3), output=(4,) * output, **limits), 0.0)
