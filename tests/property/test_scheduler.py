"""Whatever happens in whatever order, the pool is conserved, no block has two writers, nobody starves, and what
comes out depends on the request alone. `World` checks all that after every event."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler_world import VOCAB, World
from shoal.policy.batching import Request, SchedulerConfig

STEMS = tuple(tuple((7 * stem + 3 * i * i + i) % VOCAB for i in range(40)) for stem in range(3))
"""Prompts begin with a piece of one of these, so that prefixes are shared at every length."""


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    return SchedulerConfig(
        num_blocks=draw(st.sampled_from([2, 4, 9, 24])) + 40 // block_size,
        block_size=block_size,
        max_model_len=draw(st.sampled_from([48, 64, 96])),
        token_budget=draw(st.sampled_from([1, 3, 8, 32, 256])),
        max_sequences=draw(st.sampled_from([1, 2, 5, 32])),
        chunk_size=draw(st.sampled_from([None, 1, 7, 16])),
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        starvation_bound=draw(st.sampled_from([0.0, 5.0, 30.0, 1e9])),
        max_plans_in_flight=draw(st.integers(1, 3)),
        headroom=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


def make_request(rng: random.Random, request_id: int) -> Request:
    prompt = STEMS[rng.randrange(3)][: rng.randint(0, 32)]
    prompt += tuple(rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 1, 4]) + (not prompt)))
    return Request(
        id=request_id,
        prompt=prompt,
        max_tokens=rng.choice([None, 1, 2, 8, 20]),
        min_tokens=rng.choice([0, 0, 1]),
        stop_token_ids=rng.choice([(), (), (5,)]),
        eos_token_ids=rng.choice([(), (3,), (3, 4)]),
        ignore_eos=rng.random() < 0.3,
        priority=rng.choice([-1, 0, 0, 0, 2]),
        cache_salt=rng.choice([None, None, None, "a"]),
        lora=rng.choice([None, None, None, "a"]),
        prompt_logprobs=rng.random() < 0.2,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Every public operation, in every order hypothesis can think of."""

    @initialize(config=configs(), seed=st.integers(0, 2**32))
    def start(self, config: SchedulerConfig, seed: int) -> None:
        self.world = World(config)
        self.rng = random.Random(seed)

    @rule(copies=st.integers(1, 3))
    def add(self, copies: int) -> None:
        first = make_request(self.rng, len(self.world.requests))
        for _ in range(copies):
            self.world.add(_with_id(first, len(self.world.requests)))

    @precondition(lambda self: self.world.requests)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        self.world.abort(pick % len(self.world.requests))

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]))
    def submit(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.submit()

    @precondition(lambda self: self.world.flights)
    @rule(pick=st.integers(0, 2))
    def execute(self, pick: int) -> None:
        self.world.execute(self.world.flights[pick % len(self.world.flights)])

    @precondition(lambda self: self.world.flights)
    @rule(pick=st.integers(0, 2))
    def complete(self, pick: int) -> None:
        self.world.complete(pick % len(self.world.flights))

    @rule(steps=st.integers(1, 8))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step()

    @precondition(lambda self: self.world.requests)
    @rule(pick=st.integers(0, 1000), right=st.integers(0, 3), wrong=st.integers(0, 2))
    def propose(self, pick: int, right: int, wrong: int) -> None:
        self.world.propose(pick % len(self.world.requests), right, wrong)

    @rule()
    def forget_prefixes(self) -> None:
        self.world.scheduler.reset_prefix_cache()
        self.world.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


def _with_id(request: Request, request_id: int) -> Request:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return Request(**{**fields, "id": request_id})


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=80, deadline=None)
@given(config=configs(), seed=st.integers(0, 2**32))
def test_random_schedules(config: SchedulerConfig, seed: int) -> None:
    """Long schedules under load: more than hypothesis can build step by step."""
    rng = random.Random(seed)
    world = World(config)
    speculates = rng.random() < 0.4
    for _ in range(60):
        world.now += rng.choice([0.0, 0.1, 3.0])
        event = rng.random()
        live = [i for i in world.requests if i not in world.finished]
        if event < 0.25 and len(world.requests) < 24:
            request = make_request(rng, len(world.requests))
            for _ in range(rng.choice([1, 1, 4])):
                world.add(_with_id(request, len(world.requests)))
        elif event < 0.32 and live:
            world.abort(rng.choice(live))
        elif event < 0.7:
            for request_id in live if speculates else ():
                world.propose(request_id, rng.randint(0, 3), rng.randint(0, 2))
            world.submit()
        elif world.flights:
            world.complete(rng.randrange(len(world.flights)))
    world.drain()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_schedules_agree_with_each_other(seed: int) -> None:
    """The same requests through a roomy and a starved replica, in opposite orders of arrival."""
    requests = [make_request(random.Random(seed + i), i) for i in range(8)]
    roomy = SchedulerConfig(num_blocks=400, block_size=4, max_model_len=48)
    starved = SchedulerConfig(
        num_blocks=14, block_size=4, max_model_len=48, token_budget=9, chunk_size=7, headroom=0.0
    )
    endings = []
    for config, order in ((roomy, requests), (starved, requests[::-1])):
        world = World(config)
        for request in order:
            world.add(request)
        world.drain()
        endings.append((world.outputs, {i: out.finish_reason for i, out in world.finished.items()}))
    assert endings[0] == endings[1]


@settings(max_examples=40, deadline=None)
@given(config=configs(), seed=st.integers(0, 2**32))
def test_no_starvation_under_endless_urgent_load(config: SchedulerConfig, seed: int) -> None:
    """An unimportant request is answered although more urgent ones never stop coming."""
    rng = random.Random(seed)
    world = World(config)
    world.add(Request(id=0, prompt=STEMS[0][:20], max_tokens=12, priority=9))
    steps = 0
    while 0 not in world.finished:
        live = sum(i not in world.finished for i in world.requests)
        if live < 8 and config.starvation_bound < 1e6:
            request = Request(
                id=len(world.requests), prompt=STEMS[rng.randrange(3)][: rng.randint(1, 30)], max_tokens=6
            )
            world.add(request)
        world.step()
        steps += 1
        assert steps < 6000, "starved"
