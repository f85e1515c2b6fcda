"""The counted scheduler makes the plans of `Scheduler`, and many steps at once change what single ones would."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.batching import (
    ChainHasher,
    CountedRequest,
    CountedScheduler,
    Request,
    SampledSequence,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
)
from shoal.policy.batching.content import CountedTokens

STEP_SECONDS = 0.25


@dataclass(frozen=True)
class Asked:
    """A request of the test: prompt of pieces, answer of so many tokens, added before a step."""

    pieces: tuple[tuple[str | None, int], ...]
    output: int
    step: int
    priority: int
    answer: str | None


PIECES = st.tuples(st.sampled_from(["system", "tools", "document", None]), st.integers(1, 40))
ASKED = st.builds(
    Asked,
    st.lists(PIECES, min_size=1, max_size=3).map(tuple),
    st.integers(1, 60),
    st.integers(0, 80),
    st.integers(0, 1),
    st.just(None),
)
CONFIG = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(18, 60),
    block_size=st.sampled_from([4, 8, 16]),
    max_model_len=st.just(10_000),
    token_budget=st.sampled_from([8, 32, 256]),
    max_sequences=st.sampled_from([2, 5, 64]),
    chunk_size=st.sampled_from([None, 7]),
    prefix_caching=st.booleans(),
    starvation_bound=st.sampled_from([2.0, 1e6]),
    headroom=st.sampled_from([0.0, 1.0]),
    preempts=st.sampled_from(["lowest", "latest"]),
    record_events=st.just(True),
)


def fits(config: SchedulerConfig, asked: Asked) -> bool:
    return sum(n for _, n in asked.pieces) <= config.kv_capacity


def counted(number: int, asked: Asked) -> CountedRequest:
    return CountedRequest(
        id=number,
        pieces=asked.pieces,
        prompt_length=sum(n for _, n in asked.pieces),
        max_tokens=asked.output,
        priority=asked.priority,
        answer=asked.answer,
    )


def spelled(number: int, asked: Asked) -> Request:
    """The same request with token ids: those of a piece are a function of its key and place."""
    prompt: list[int] = []
    for place, (key, tokens) in enumerate(asked.pieces):
        base = hash((number, place)) % 10**9 if key is None else 10**10 + sum(map(ord, key)) * 10**6
        prompt += [base + i for i in range(tokens)]
    return Request(
        id=number, prompt=tuple(prompt), max_tokens=asked.output, ignore_eos=True, priority=asked.priority
    )


def outline(plan: StepPlan) -> tuple[object, ...]:
    """Everything of a plan but token ids."""
    shares = tuple((s.sequence_id, s.start, len(s.tokens), s.reset, s.blocks, s.sample) for s in plan.sequences)
    return plan.step, shares, plan.copies, plan.finished


@settings(max_examples=150, deadline=None)
@given(CONFIG, st.lists(ASKED, min_size=1, max_size=14))
def test_plans_are_those_of_the_scheduler(config: SchedulerConfig, requests: list[Asked]) -> None:
    real, light = Scheduler(config), CountedScheduler(config, ChainHasher(config.block_size))
    todo = sorted((r for r in requests if fits(config, r)), key=lambda r: r.step)
    now, step, number = 0.0, 0, 0
    while number < len(todo) or real.has_work():
        while number < len(todo) and (todo[number].step <= step or not real.has_work()):
            real.add(spelled(number, todo[number]), now)
            light.add(counted(number, todo[number]), now)
            number += 1
        plan, other = real.schedule(now), light.schedule(now)
        assert plan is not None
        assert other is not None
        assert outline(plan) == outline(other)
        now += STEP_SECONDS
        token = 10**15 + step * 1000
        answers = tuple(
            SampledSequence(s.sequence_id, (token + s.sequence_id,) if s.sample else ()) for s in plan.sequences
        )
        ended = [o.request_id for o in real.complete(plan, StepResult(plan.step, answers), now) if o.finish_reason]
        light_ended = light.complete(other, StepResult(plan.step, answers), now)
        assert ended == [o.request_id for o in light_ended if o.finish_reason]
        step += 1
    assert real.stats() == light.stats()
    light.check()


def run(config: SchedulerConfig, requests: list[Asked], jumps: bool) -> tuple[object, ...]:
    """Every time of every request by step numbers, the KV events, and the pool at the end."""
    scheduler = CountedScheduler(config, ChainHasher(config.block_size))
    todo = sorted((r for r in requests if fits(config, r)), key=lambda r: r.step)
    step, number, jumped = 0, 0, 0
    firsts, ends, order = {}, {}, []
    while number < len(todo) or scheduler.has_work():
        if not scheduler.has_work():
            step = max(step, todo[number].step)
        while number < len(todo) and todo[number].step <= step:
            scheduler.add(counted(number, todo[number]), step * STEP_SECONDS)
            number += 1
        quiet = scheduler.quiet() if jumps else None
        count = 0
        if quiet is not None:
            count = quiet.steps
            if number < len(todo):
                count = min(count, todo[number].step - step)
            while count > 0 and not quiet.may_begin((step + count - 1) * STEP_SECONDS):
                count -= 1
        if count > 1:
            step += count
            jumped += count
            ended = scheduler.advance(count, step * STEP_SECONDS)
        else:
            begun = scheduler.begin(step * STEP_SECONDS)
            assert begun is not None
            step += 1
            ended = scheduler.end(begun, step * STEP_SECONDS)
        for sequence in ended.first:
            firsts[sequence.id] = step
        for sequence in ended.finished:
            ends[sequence.id] = step, sequence.preemptions, sequence.cached_tokens
            order.append(sequence.id)
        scheduler.check()
    assert sorted(ends) == list(range(len(todo)))
    pool = scheduler._tables.pool
    free = [pool._next[0]]
    while free[-1]:
        free.append(pool._next[free[-1]])
    names: dict[bytes, int] = {}
    hashed = [None if h is None else names.setdefault(h, len(names)) for h in pool._hashes]
    run.jumped += jumped  # type: ignore[attr-defined]
    return firsts, ends, order, free, hashed, scheduler.stats(), len(scheduler.take_events())


run.jumped = 0  # type: ignore[attr-defined]


@settings(max_examples=250, deadline=None)
@given(CONFIG, st.lists(ASKED, min_size=1, max_size=14), st.booleans())
def test_steps_at_once_do_what_single_steps_do(config: SchedulerConfig, requests: list[Asked], same: bool) -> None:
    if same:
        # Answers of equal content, which later prompts may contain.
        requests = [replace(r, answer="document") for r in requests]
    assert run(config, requests, jumps=True) == run(config, requests, jumps=False)


def test_most_decoding_is_done_at_once() -> None:
    config = SchedulerConfig(num_blocks=600, block_size=16, max_model_len=10_000)
    before = run.jumped  # type: ignore[attr-defined]
    run(config, [Asked((("system", 40),), 500, 0, 0, None)] * 8, jumps=True)
    assert run.jumped - before > 480  # type: ignore[attr-defined]


@given(st.lists(PIECES, min_size=1, max_size=4), st.lists(PIECES, min_size=1, max_size=4), st.integers(1, 9))
def test_names_are_equal_where_contents_are(
    one: list[tuple[str | None, int]], other: list[tuple[str | None, int]], size: int
) -> None:
    hasher = ChainHasher(size)

    def letters(pieces: list[tuple[str | None, int]], who: int) -> list[object]:
        return [(key or (who, place), i) for place, (key, tokens) in enumerate(pieces) for i in range(tokens)]

    def chain(pieces: list[tuple[str | None, int]]) -> tuple[bytes, ...]:
        return hasher.chain(pieces, sum(n for _, n in pieces))

    first, second = chain(one), chain(other)
    a, b = letters(one, 1), letters(other, 2)
    for index in range(min(len(first), len(second))):
        # Equal names mean equal content; the converse holds where content is cut into pieces alike.
        if first[index] == second[index]:
            assert a[: (index + 1) * size] == b[: (index + 1) * size]
        elif one == other:
            assert a[: (index + 1) * size] != b[: (index + 1) * size]


def test_an_answer_names_its_blocks_as_the_next_prompt_does() -> None:
    hasher = ChainHasher(8)
    growing = CountedTokens((("question", 13),), 13, "answer", 13 + 21)
    hashes: list[bytes] = []
    hasher.extend(hashes, growing, ())
    following = hasher.chain((("question", 13), ("answer", 21), ("more", 30)), 64)
    assert following[:4] == tuple(hashes)
