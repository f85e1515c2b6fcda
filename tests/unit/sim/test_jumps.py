"""Many steps at once end at the same nanosecond as the same steps one by one, whatever happens between them."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from sim_kit import SCHEDULER, STEP, fleet, spec

from shoal.policy.admission import AdmissionConfig
from shoal.policy.batching import SchedulerConfig
from shoal.policy.split import SplitConfig
from shoal.sim import Fault, Simulated, SimulatedFleet, SimulationOptions, simulate
from shoal.sim.faults import KINDS
from shoal.sim.timing import StepClock, StepWork, bucket
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.run import RunOptions

CONFIG = st.builds(
    SchedulerConfig,
    num_blocks=st.sampled_from([40, 90, 600]),
    block_size=st.sampled_from([8, 16]),
    max_model_len=st.just(8192),
    token_budget=st.sampled_from([64, 512]),
    max_sequences=st.sampled_from([3, 64]),
    starvation_bound=st.sampled_from([0.5, 30.0]),
)


def drawn(seed: int, sessions: int, span: float) -> Load:
    """Conversations with shared beginnings at random times."""
    draw = random.Random(seed)
    made = []
    for s, at in enumerate(sorted(draw.uniform(0, span) for _ in range(sessions))):
        turns = []
        for t in range(draw.choice([1, 1, 3])):
            new = [Segment(f"s{s}/{t}", draw.randint(1, 120))]
            if t == 0 and draw.random() < 0.5:
                new.insert(0, Segment(draw.choice(["x", "y"]), 48))
            turns.append(Turn(tuple(new), draw.randint(1, 150), draw.uniform(0, 2) if t else 0.0))
        made.append(Session(tuple(turns), at))
    return Load(tuple(made), "drawn", rate=sessions / span)


def fates(done: Simulated) -> list[tuple[object, ...]]:
    return [
        (
            *(a.index, a.session, a.turn, a.sent, a.first, a.last, a.ended, a.outcome, a.status),
            *(a.tokens, a.cached, a.replica, a.legs, a.continued, a.preemptions),
        )
        for a in done.asks
    ]


def compare(made: SimulatedFleet, load: Load, run: RunOptions, faults: tuple[Fault, ...] = ()) -> Simulated:
    quick = simulate(made, load, run, SimulationOptions(faults=faults, seed=7))
    exact = simulate(made, load, run, SimulationOptions(faults=faults, seed=7, exact=True))
    assert fates(quick) == fates(exact)
    assert exact.jumped == 0
    if run.concurrency is None:
        # A closed loop stops at its last answer; what else ends in that nanosecond may be counted or not.
        assert (quick.steps, quick.hit_tokens, quick.preemptions) == (
            exact.steps,
            exact.hit_tokens,
            exact.preemptions,
        )
        assert [quick.gaps.quantile(q) for q in (0.5, 0.99)] == [exact.gaps.quantile(q) for q in (0.5, 0.99)]
        assert (quick.handoffs, quick.hangs, quick.crashes) == (exact.handoffs, exact.hangs, exact.crashes)
    return quick


@settings(max_examples=60, deadline=None)
@given(CONFIG, st.integers(0, 10**6), st.integers(1, 40), st.floats(0.1, 20.0), st.sampled_from([1, 3]))
def test_open_loops(config: SchedulerConfig, seed: int, sessions: int, span: float, replicas: int) -> None:
    made = SimulatedFleet(replicas=tuple(spec(f"r{i}", scheduler=config) for i in range(replicas)))
    compare(made, drawn(seed, sessions, span), RunOptions(deadline=20.0))


@settings(max_examples=25, deadline=None)
@given(CONFIG, st.integers(0, 10**6), st.integers(1, 12))
def test_closed_loops(config: SchedulerConfig, seed: int, users: int) -> None:
    made = SimulatedFleet(replicas=tuple(spec(f"r{i}", scheduler=config) for i in range(2)))
    compare(made, drawn(seed, 30, 1.0), RunOptions(concurrency=users, requests=40, warmup=4))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_faults_limits_and_early_refusal(seed: int) -> None:
    draw = random.Random(seed)
    admission = AdmissionConfig(ttft_target=draw.choice([None, 2.0]), max_queue=20)
    specs = tuple(spec(f"r{i}", max_inflight=6, front=0.003, back=0.001, start=5.0) for i in range(3))
    made = SimulatedFleet(replicas=specs, admission=admission)
    compare(made, drawn(seed, 80, 20.0), RunOptions(deadline=90.0), broken(draw, 3))


def broken(draw: random.Random, replicas: int) -> tuple[Fault, ...]:
    """Faults of any kind among `r0` …"""
    return tuple(
        Fault(draw.choice(KINDS), draw.uniform(0, 20), f"r{draw.randrange(replicas)}", draw.uniform(1, 60),
              draw.uniform(1, 8))
        for _ in range(draw.randint(1, 6))
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_split_fleets_with_faults_and_little_memory(seed: int) -> None:
    draw = random.Random(seed)
    scheduler = replace(SCHEDULER, num_blocks=draw.choice([40, 90, 600]))
    roles = ["prefill"] * draw.randint(1, 2) + ["decode"] * draw.randint(1, 3) + ["both"] * draw.randint(0, 1)
    link = draw.choice([1e5, 1e7, 1e9])
    back = draw.choice([0.0, 0.001])
    specs = tuple(
        spec(f"r{i}", role=role, scheduler=scheduler, max_inflight=draw.choice([4, 64]), back=back,
             start=5.0, kv_token_bytes=1000.0, link_bytes=link)
        for i, role in enumerate(roles)
    )  # fmt: skip
    split = SplitConfig(threshold_tokens=draw.choice([1, 60]), prefill_seconds=draw.choice([3.0, 60.0]))
    made = SimulatedFleet(replicas=specs, split=split)
    faults = broken(draw, len(specs)) if draw.random() < 0.7 else ()
    done = compare(made, drawn(seed, 60, 20.0), RunOptions(deadline=draw.choice([15.0, 90.0])), faults)
    counts = done.handoffs
    assert counts.handed == counts.taken + counts.released + counts.lost + counts.live


def test_most_steps_are_jumped_and_two_runs_are_equal() -> None:
    load, run = drawn(3, 60, 60.0), RunOptions()
    done = compare(fleet(2), load, run)
    assert done.jumped > 0.8 * done.steps
    assert fates(simulate(fleet(2), load, run)) == fates(done)


@given(st.integers(0, 10**7), st.integers(1, 300), st.integers(1, 3000))
def test_runs_are_sums_of_their_steps(context: int, sequences: int, steps: int) -> None:
    clock = StepClock(STEP)
    run, time = clock.run(17, steps, sequences, context), 17
    checked = {1, 2, steps, steps // 2, steps // 3}
    for step in range(1, steps + 1):
        before = time
        time += clock.step(StepWork(decode=sequences, context=context + (step - 1) * sequences))
        if step in checked:
            assert run.end(step) == time
            assert run.under_way(before) == step
            assert run.under_way(time - 1) == step
    assert sum(count * each for count, each in run.pieces(steps)) == time - 17


@given(st.integers(0, 10**8))
def test_buckets_are_narrow(context: int) -> None:
    start, width = bucket(context)
    assert start <= context < start + width
    assert width == 256 or width <= context / 63
    assert bucket(start) == bucket(start + width - 1) == (start, width)


def test_a_full_cache_preempts_alike() -> None:
    tight = SchedulerConfig(num_blocks=30, block_size=16, max_model_len=8192, token_budget=512, headroom=0.0)
    done = compare(SimulatedFleet(replicas=(spec(scheduler=tight),)), drawn(5, 30, 3.0), RunOptions())
    assert done.preemptions > 0
    assert SCHEDULER.num_blocks > tight.num_blocks
