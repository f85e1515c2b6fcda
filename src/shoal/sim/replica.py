"""One simulated replica: a real scheduler, steps that take the time a model says, and runs of steps done at once.

            submit                              first token, last token
               │                                         ▲
    idle ──► step ──► step ──► run of steps alike ──► step …
                                 │ a request comes, or leaves
                                 └─► cut at the end of the step under way

Lazy: between two events its books say how things stood at the last one; `settle` brings them up to date.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.policy.account import ReplicaStats
from shoal.policy.batching import ChainHasher, CountedRequest, CountedScheduler, Ended, Quiet, SchedulerConfig
from shoal.policy.batching.request import SequenceState
from shoal.policy.batching.step import Step
from shoal.sim.events import NANOSECONDS, Events
from shoal.sim.timing import Run, StepClock, StepSeconds, StepWork


class Listener(Protocol):
    """Whoever sent requests to a replica hears of them."""

    def on_first_token(self, sequence: SequenceState, time: int) -> None: ...
    def on_finished(self, sequence: SequenceState, time: int) -> None: ...


@dataclass(slots=True)
class ReplicaCounts:
    """What one replica did in a run."""

    busy: int = 0
    """Nanoseconds in steps."""
    steps: int = 0
    jumped: int = 0
    """Of `steps`, those that were not simulated one by one."""
    crashes: int = 0


class SimulatedReplica:
    """Answers requests in virtual time."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        time_model: StepSeconds,
        hasher: ChainHasher,
        events: Events,
        listener: Listener,
        *,
        jumps: bool = True,
    ) -> None:
        """`jumps` False: every step is simulated by itself, for comparison."""
        self.name = name
        self.config = config
        self.clock = StepClock(time_model)
        self.counts = ReplicaCounts()
        self.scheduler = CountedScheduler(config, hasher)
        self.up = True
        """Its process lives."""
        self.hangs = False
        """It lives, and computes nothing."""
        self._hasher = hasher
        self._events = events
        self._listener = listener
        self._jumps = jumps
        self._step: Step | None = None
        self._run: Run | None = None
        self._began = 0
        """When the step or run under way began."""
        self._ends = 0
        self._runs_to = 0
        """Steps of the run that will be done."""
        self._ticket = 0
        """Tells the end that is still to come from those that were cut."""
        self.on_steps: Callable[[int, int, int], None] | None = None
        """Told (steps, nanoseconds each, sequences) of decode steps; for inter-token latencies."""

    # Requests

    def submit(self, request: CountedRequest, time: int) -> None:
        """Take a request in. Raises RequestRefused if it could never be served."""
        self.scheduler.add(request, time / NANOSECONDS)
        if self._run is not None:
            self._cut(self._run, time)
        elif self._step is None and not self.hangs:
            self._begin(time)

    def abort(self, request_id: int, time: int) -> None:
        """Nobody wants a request any more."""
        self.settle(time)
        self.scheduler.abort(request_id)

    def sequence(self, request_id: int) -> SequenceState | None:
        """A live request as it stood at the last event; None: it isn't live."""
        return self.scheduler.get(request_id)

    def generated(self, request_id: int, time: int) -> int:
        """Return the output tokens of a live request by now, those it began with included."""
        self.settle(time)
        sequence = self.scheduler.get(request_id)
        return 0 if sequence is None else max(0, sequence.length - sequence.prompt_length)

    # Steps

    def _begin(self, time: int) -> None:
        """The engine is free: the next step, or as many as are alike."""
        scheduler = self.scheduler
        quiet = scheduler.quiet() if self._jumps else None
        if quiet is not None:
            run = self.clock.run(time, quiet.steps, quiet.sequences, quiet.cached)
            steps = quiet.steps
            if quiet.progressed is not None:
                steps = _before_ageing(run, quiet)
            if steps > 1:
                self._run, self._runs_to = run, steps
                self._end_at(run.end(steps), time)
                return
        step = scheduler.begin(time / NANOSECONDS)
        if step is not None:
            self._step = step
            self._end_at(time + self.clock.step(_work_of(step)), time)

    def _end_at(self, end: int, began: int) -> None:
        self._began, self._ends = began, end
        self._ticket += 1
        ticket = self._ticket
        self._events.at_step_end(end, lambda time: self._on_end(ticket, time))

    def _on_end(self, ticket: int, time: int) -> None:
        if ticket != self._ticket:
            return
        self._finish_steps(time)
        self._begin(time)

    def _finish_steps(self, time: int) -> None:
        """The step or run under way ends now."""
        seconds = time / NANOSECONDS
        began, self._began = self._began, time
        self.counts.busy += time - began
        if self._run is not None:
            run, steps = self._run, self._runs_to
            self._run = None
            self._note_run(run, steps)
            ended = self.scheduler.advance(steps, seconds)
        else:
            step = self._step
            assert step is not None
            self._step = None
            self.counts.steps += 1
            if self.on_steps is not None:
                self.on_steps(1, time - began, _running(step))
            ended = self.scheduler.end(step, seconds)
        self._tell(ended, time)

    def _note_run(self, run: Run, steps: int) -> None:
        self.counts.steps += steps
        self.counts.jumped += steps
        if self.on_steps is not None:
            sequences = self.scheduler.running
            for count, each in run.pieces(steps):
                self.on_steps(count, each, sequences)

    def _tell(self, ended: Ended, time: int) -> None:
        for sequence in ended.first:
            self._listener.on_first_token(sequence, time)
        for sequence in ended.finished:
            self._listener.on_finished(sequence, time)

    def _cut(self, run: Run, time: int) -> None:
        """End the run with the step under way."""
        step = run.under_way(time)
        if step < self._runs_to:
            self._runs_to = step
            self._end_at(run.end(step), self._began)

    def settle(self, time: int) -> None:
        """Bring the books up to `time`: what a run has done by then is done, the step under way is in flight."""
        run = self._run
        if run is None:
            return
        done = min(run.under_way(time), self._runs_to) - 1
        began, self._run = self._began, None
        start = run.end(done)
        if done:
            self.counts.busy += start - began
            self._note_run(run, done)
            # Nobody ends in it: only the last step of a run ends sequences.
            self.scheduler.advance(done, start / NANOSECONDS)
        self._step = self.scheduler.begin_alike(start / NANOSECONDS)
        self._end_at(run.end(done + 1), start)

    # Blocks that others fetch, bring or take

    def known(self, hashes: Sequence[bytes], time: int) -> int:
        """How many leading blocks of these are in its cache."""
        self.settle(time)
        return self.scheduler.handoffs.known(hashes)

    def release_held(self, request_id: int, time: int) -> None:
        """Nobody needs the blocks any more that a request left for another replica; again is no error."""
        self.settle(time)
        if self.scheduler.handoffs.release(request_id):
            self._go_on(time)

    def import_blocks(self, hashes: Sequence[bytes], first: int, count: int, time: int) -> int:
        """Put blocks `first` … of a prompt into the cache; as many as there was room for."""
        self.settle(time)
        handoffs, size = self.scheduler.handoffs, self.config.block_size
        blocks = handoffs.begin(min(count, self._available()))
        if blocks:
            handoffs.store(blocks, first, hashes, range(len(hashes) * size))
            self._go_on(time)
        return len(blocks or ())

    def take_blocks(self, share: float, time: int) -> list[int]:
        """Take a share of all blocks out of use, or as many as nobody owns; `give_back` ends it."""
        self.settle(time)
        total = self.scheduler.stats().blocks_total
        blocks = self.scheduler.handoffs.begin(min(int(share * total), self._available()))
        self._go_on(time)
        return blocks or []

    def _available(self) -> int:
        """Blocks that nobody owns."""
        stats = self.scheduler.stats()
        return stats.blocks_free + stats.blocks_cached

    def give_back(self, blocks: Sequence[int], time: int) -> None:
        """Put blocks that were taken into use again."""
        self.settle(time)
        self.scheduler.handoffs.drop(blocks)
        self._go_on(time)

    def _go_on(self, time: int) -> None:
        """Memory has changed: whoever didn't fit may fit now."""
        self.scheduler.recheck()
        if self.idle and self.up and not self.hangs:
            self._begin(time)

    # Faults

    def slow_down(self, factor: float, time: int) -> None:
        """Steps that begin from now on take `factor` times as long."""
        self.settle(time)
        self.clock.factor = factor

    def hang(self, time: int) -> None:
        """Compute nothing from now on; the step under way never ends."""
        self.settle(time)
        self.hangs = True
        self._ticket += 1

    def recover(self, time: int) -> None:
        """Go on after a hang; the step that hung ends now."""
        self.hangs = False
        if self._step is not None:
            self._end_at(time, time)
        else:
            self._begin(time)

    def crash(self, time: int) -> None:
        """Lose everything."""
        self.settle(time)
        self.up = self.hangs = False
        self._ticket += 1
        self._step = self._run = None
        self.counts.crashes += 1

    def start(self) -> None:
        """Serve again, with an empty cache."""
        self.scheduler = CountedScheduler(self.config, self._hasher)
        self.up = True

    # What it says

    @property
    def live(self) -> set[int]:
        """Requests that it computes or will; none if its process is gone."""
        return set(self.scheduler.live) if self.up else set()

    @property
    def idle(self) -> bool:
        return self._step is None and self._run is None

    def progressed_at(self, time: int) -> int:
        """When it last ended a step, by `time`."""
        if self._run is not None:
            return self._run.end(min(self._run.under_way(time), self._runs_to) - 1)
        return self._began

    def gauges(self, time: int) -> ReplicaStats:
        """What its metrics say at `time`."""
        scheduler, run = self.scheduler, self._run
        begun = 0 if run is None else min(run.under_way(time), self._runs_to)
        return ReplicaStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            kv_usage=scheduler.owned_after(begun) / (self.config.num_blocks - 1),
            kv_capacity_tokens=self.config.kv_capacity,
        )


def _before_ageing(run: Run, quiet: Quiet) -> int:
    """How many steps of a run begin before a waiting request is aged."""

    def begins_in_time(step: int) -> bool:
        return quiet.may_begin(run.end(step - 1) / NANOSECONDS)

    if begins_in_time(run.steps):
        return run.steps
    low, high = 0, run.steps  # step `low` begins in time, step `high` doesn't
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if begins_in_time(middle) else (low, middle)
    return low


def _work_of(step: Step) -> StepWork:
    work = StepWork()
    for share in step.shares.values():
        rows = share.rows
        if rows == 1 and share.sequence.first_token is not None:
            work.decode += 1
            work.context += share.start + 1
        else:
            work.chunks += 1
            work.tokens += rows
            work.cached += rows * share.start
            work.pairs += rows * rows
    return work


def _running(step: Step) -> int:
    """Sequences that get a token which is not their first."""
    return sum(share.sequence.first_token is not None and share.samples for share in step.shares.values())
