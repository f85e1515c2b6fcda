"""Our engine and a simulated replica on one trace, with the engine's own step times: the same plans every step."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.engine.core import EngineCore
from shoal.engine.load import load_engine
from shoal.engine.options import EngineOptions
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.params import SamplingParams
from shoal.policy.batching import ChainHasher, CountedRequest, StepPlan
from shoal.policy.batching.request import SequenceState
from shoal.policy.batching.step import Step
from shoal.sim.events import Events
from shoal.sim.replica import SimulatedReplica
from shoal.sim.timing import StepWork

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Asked:
    at: float
    pieces: tuple[tuple[str, int], ...]
    output: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for key, n in self.pieces for token in random.Random(key).choices(range(256), k=n))


@dataclass
class Recorded:
    plans: list[object] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    adds: list[int] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    """Request → step."""


def outline(plan: StepPlan) -> object:
    return [
        (s.sequence_id, s.start, len(s.tokens), s.reset, s.blocks, s.sample) for s in plan.sequences
    ], plan.copies


def trace(seed: int) -> list[Asked]:
    """Bursts with shared beginnings, repeated prompts, long and short answers."""
    draw = random.Random(seed)
    asked = []
    at = 0.0
    for number in range(48):
        at += draw.choice([0.0, 0.0, 0.002, 0.02])
        pieces = [(draw.choice(["system", "tools"]), 40)] if draw.random() < 0.6 else []
        pieces.append((f"q{draw.choice([number, number // 4])}", draw.randint(1, 90)))
        asked.append(Asked(at, tuple(pieces), draw.randint(1, 60)))
    return asked


def drive(core: EngineCore, asked: list[Asked]) -> Recorded:
    """Run the engine's loop on the trace, noting every plan and when it was made."""
    seen = Recorded()
    schedule = core._scheduler.schedule

    def noting(now: float) -> StepPlan | None:
        plan = schedule(now)
        if plan is not None:
            seen.begins.append(time.monotonic_ns())
            seen.plans.append(outline(plan))
        return plan

    core._scheduler.schedule = noting  # type: ignore[method-assign]
    start, left = time.monotonic(), list(asked)
    while left or core.has_work():
        assert time.monotonic() - start < DEADLINE_SECONDS
        while left and time.monotonic() - start >= left[0].at:
            idle = not core.has_work()
            one = left.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=one.output, ignore_eos=True)
            seen.adds.append(time.monotonic_ns())
            core.add(EngineRequest(request_id=str(len(seen.adds) - 1), prompt=one.tokens, params=params))
            if idle:
                break  # An idle engine begins with whoever comes first.
        steps = len(seen.begins)
        for output in core.step():
            if output.finish_reason is not None:
                seen.finished[int(output.request_id)] = len(seen.begins) - 1
        if len(seen.begins) > steps:
            seen.ends.append(time.monotonic_ns())
    return seen


class Replayed:
    """Step times of a recording: each step ends when the engine was free again."""

    def __init__(self, seen: Recorded, events: Events) -> None:
        self._seen, self._events, self._step = seen, events, 0
        self.factor = 1.0

    def step(self, work: StepWork) -> int:
        number = self._step
        self._step += 1
        over = self._seen.ends[number]
        following = self._seen.begins[number + 1] if number + 1 < len(self._seen.begins) else over
        # What was added after the step, to a busy engine, was in time for the next.
        waited = any(over < add < following for add in self._seen.adds) and self._idle_after(number)
        return max(1, (over if waited else following) - self._events.now)

    def _idle_after(self, number: int) -> bool:
        ended = sum(step <= number for step in self._seen.finished.values())
        return ended == sum(add < self._seen.ends[number] for add in self._seen.adds)


class Ends:
    """Notes which step ended each request."""

    def __init__(self, plans: list[object]) -> None:
        self.finished: dict[int, int] = {}
        self._plans = plans

    def on_first_token(self, sequence: SequenceState, time: int) -> None:
        """Nothing."""

    def on_finished(self, sequence: SequenceState, time: int) -> None:
        self.finished[sequence.id] = len(self._plans) - 1


@pytest.mark.parametrize(("num_blocks", "seed"), [(400, 1), (24, 2), (16, 3)])
def test_the_same_plans(tiny_model: Path, num_blocks: int, seed: int) -> None:
    options = EngineOptions(
        model=str(tiny_model), num_blocks=num_blocks, max_model_len=220, max_num_batched_tokens=64, max_num_seqs=12
    )
    core, _ = load_engine(options)
    try:
        asked = trace(seed)
        seen = drive(core, asked)
        config = core._scheduler.config
        preemptions = core._scheduler.stats().preemptions
    finally:
        core.close()
    assert len(seen.finished) == len(asked)

    events, plans = Events(), []
    listener = Ends(plans)
    replica = SimulatedReplica("r", config, _Never(), ChainHasher(config.block_size), events, listener, jumps=False)
    replica.clock = Replayed(seen, events)  # type: ignore[assignment]
    launch = replica.scheduler._launch

    def noting(step: Step, now: float) -> None:
        plans.append(outline(step.message(())))
        launch(step, now)

    replica.scheduler._launch = noting  # type: ignore[method-assign]
    for number, (one, at) in enumerate(zip(asked, seen.adds, strict=True)):
        request = CountedRequest(id=number, pieces=one.pieces, prompt_length=len(one.tokens), max_tokens=one.output)
        events.at(at, lambda time, request=request: replica.submit(request, time))
    events.run(seen.ends[-1] + 1)

    assert plans == seen.plans
    assert listener.finished == seen.finished
    assert replica.scheduler.stats().preemptions == preemptions
    if num_blocks == 16:
        assert preemptions > 0
    replica.scheduler.check()


class _Never:
    def seconds(self, work: StepWork) -> float:
        raise AssertionError("the recording's times are used")
