"""The scheduler of one replica: decides what every step computes. Pure: state and time in, plans out.

    add ──► waiting ──admit──► ready ──schedule──► in flight ──complete──► ready … finished
               ▲                 │
               └──── preempt ────┘        a sequence is in at most one plan in flight

There are no phases: every sequence wants its known tokens (and drafts) computed, prompt and output alike; a step
deals one token budget to the ready sequences, least recently scheduled first, and then admits waiting ones.
`computed` advances when a sequence is scheduled; drafts that turn out wrong are subtracted when its plan completes.

No decision depends on the order of a set, on a hash of Python's, or on a clock: the same calls make the same plans.
"""

from shoal.policy.batching.blocks import IntegrityError
from shoal.policy.batching.config import SchedulerConfig, SchedulerStats
from shoal.policy.batching.events import KvEvent
from shoal.policy.batching.handoff import Handoffs
from shoal.policy.batching.plan import SampledSequence, StepPlan, StepResult
from shoal.policy.batching.queue import WaitingQueue
from shoal.policy.batching.request import Asked, FinishReason, Output, RequestRefused, SequenceState, length_limit
from shoal.policy.batching.step import Share, Step
from shoal.policy.batching.tables import BlockTables, Hasher, PrefixMatch

LOOK_PAST = 16
"""A step admits requests behind at most so many that wait for a prefix being computed."""


class Scheduler:
    """One replica's continuous batching. `now` is in seconds on any clock that doesn't go back."""

    def __init__(self, config: SchedulerConfig, hasher: Hasher | None = None) -> None:
        self.config = config
        self._tables = BlockTables(config, hasher)
        self.handoffs = Handoffs(self._tables.pool)
        self._sequences: dict[int, SequenceState] = {}
        self._waiting = WaitingQueue(config.starvation_bound)
        self._ready: dict[int, SequenceState] = {}
        """Own blocks and are in no plan in flight; the least recently scheduled first."""
        self._in_flight: dict[int, Step] = {}
        self._dropped: dict[int, None] = {}
        """Ids that the ranks know and can forget; told with the next plan. A dict for its order."""
        self._added = self._admissions = self._steps = self._finished = 0
        self._scheduled_tokens = self._preemptions = self._queried = self._hits = 0

    # What callers ask

    def add(self, request: Asked, now: float) -> None:
        """Queue a request. Raises RequestRefused (a ValueError) if it could never be served."""
        if request.id in self._sequences:
            raise RequestRefused(f"id {request.id} is that of a live request; ids must be unique")
        limit = length_limit(request, self.config)
        sequence = SequenceState.start(request, self._added, limit, now)
        self._added += 1
        self._sequences[request.id] = sequence
        self._waiting.push(sequence)

    def abort(self, request_id: int) -> Output | None:
        """End a request because nobody wants it any more. See `finish`."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: int, reason: FinishReason, error: str | None = None) -> Output | None:
        """End a request at any moment, for example at a stop string; its last output, or None if it isn't live.

        Its blocks are free at once, or when the plan that writes to them is completed; what that plan yields for it
        is ignored.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.finish_reason is not None:
            return None
        sequence.finish_reason = reason
        if not sequence.in_flight:
            if request_id in self._ready:
                del self._ready[request_id]
            else:
                self._waiting.remove(sequence)
            self._forget(sequence)
        return sequence.output(error=error)

    def propose(self, request_id: int, drafts: tuple[int, ...]) -> bool:
        """Speculative tokens to verify in the sequence's next step; False if it is not ready for one."""
        sequence = self._ready.get(request_id)
        if sequence is None:
            return False
        sequence.drafts = drafts
        return True

    def has_work(self) -> bool:
        """Whether any request is live, or ended while a plan for it is in flight."""
        return bool(self._sequences)

    # One step

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan; None if there is nothing to compute or as many plans are in flight as allowed.

        If a request is live and no plan is in flight, there is a plan.
        """
        step = self._compose(now)
        if step is None:
            return None
        dropped = self._tell_dropped(step)
        plan = step.message(dropped)
        self._launch(step, now)
        return plan

    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Take in what a plan yielded, in any order of plans. Raises ValueError if the plan is not in flight.

        A step that failed as a whole is completed by a result that has an error for every sequence.
        """
        if result.step != plan.step or plan.step not in self._in_flight:
            raise ValueError(
                f"result of step {result.step} for plan {plan.step}; in flight: {list(self._in_flight)}"
            )
        step = self._in_flight.pop(plan.step)
        self._tables.pool.release([source for source, _ in step.copies])
        sampled = {entry.sequence_id: entry for entry in result.sequences}
        outputs = []
        for share in step.shares.values():
            sequence = share.sequence
            sequence.in_flight = False
            self._tables.settle(share.pending)
            answer = sampled.get(sequence.id) or SampledSequence(sequence.id, ())
            ended_before = sequence.finish_reason is not None
            output = None if ended_before else share.take_in(answer, now)
            if answer.error is None and sequence.finish_reason != "error":
                self._tables.commit(sequence)
            self._put_back(sequence)
            if output is not None:
                outputs.append(output)
        return outputs

    def _compose(self, now: float) -> Step | None:
        """The next step, or None; nobody knows of it until `_launch`."""
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            return None
        step = self._new_step()
        self._waiting.age(now)
        self._continue_ready(step)
        if not step.short:
            self._admit_waiting(step)
        return step if step.shares else None

    def _new_step(self) -> Step:
        plans = self.config.max_plans_in_flight
        # Plans in flight share the sequences evenly, or one plan would take all and leave the other stages idle.
        seats = -(-min(len(self._sequences), self.config.max_sequences) // plans)
        micro_batch = 0
        if plans > 1:
            taken = [step.micro_batch for step in self._in_flight.values()]
            micro_batch = next(index for index in range(plans) if index not in taken)
        return Step(self.config.token_budget, seats, micro_batch, self._steps)

    def _continue_ready(self, step: Step) -> None:
        for sequence in list(self._ready.values()):
            if not step.open:
                break
            if sequence.id not in self._ready:
                continue  # preempted for one before it
            count, drafts = self._wanted(sequence, step.budget)
            if drafts and not self._tables.grow(sequence, sequence.computed + count + len(drafts)):
                drafts = ()  # a guess is not worth a preemption
            if self._make_room(step, sequence, sequence.computed + count):
                self._schedule_share(step, sequence, count, drafts)

    def _wanted(self, sequence: SequenceState, budget: int) -> tuple[int, tuple[int, ...]]:
        """Known tokens to compute now, and the drafts to verify after them."""
        known = sequence.length - sequence.computed
        count = min(known, budget, self.config.chunk_size or budget)
        if count < known:
            return count, ()
        # Verifying d drafts yields up to d + 1 tokens: not more than may still come.
        room = min(budget - count, sequence.limit - sequence.length - 1)
        return count, sequence.drafts[: max(0, room)]

    def _make_room(self, step: Step, sequence: SequenceState, length: int) -> bool:
        """Blocks for `length` tokens, preempting those that rank below; False if it has to wait."""
        while not self._tables.grow(sequence, length):
            step.short = True
            victim = max(self._ready.values(), key=self._expendable)
            if victim is sequence and self._in_flight:
                return False  # a plan in flight may give blocks back
            self._preempt(step, victim)
            if victim is sequence:
                return False
        return True

    def _expendable(self, sequence: SequenceState) -> tuple[float, ...]:
        """What is greatest of whoever gives its blocks back first."""
        return (sequence.admission,) if self.config.preempts == "latest" else sequence.rank

    def _preempt(self, step: Step, sequence: SequenceState) -> None:
        """Take all blocks from a ready sequence, its share of this step too; it will be computed again."""
        share = step.shares.pop(sequence.id, None)
        if share is not None:
            step.budget += share.rows
            self._tables.settle(share.pending)
        del self._ready[sequence.id]
        if sequence.sent_blocks:
            self._dropped[sequence.id] = None
        self._tables.release(sequence)
        sequence.drafts = ()
        sequence.preemptions += 1
        self._preemptions += 1
        self._waiting.push(sequence)

    def _admit_waiting(self, step: Step) -> None:
        position = 0
        while step.open and position < min(len(self._waiting), LOOK_PAST):
            running = len(self._sequences) - len(self._waiting)
            if running >= self.config.max_sequences:
                break
            sequence = self._waiting[position]
            if not sequence.aged and self._tables.awaited(sequence):
                position += 1
                continue
            match = self._tables.match(sequence)
            if not sequence.aged and sequence.awaits is not None:
                position += 1
                continue
            if not self._admit(step, sequence, match, running):
                step.blocked = True
                break  # nobody passes the first in line for want of blocks, or a large request would starve

    def _admit(self, step: Step, sequence: SequenceState, match: PrefixMatch, running: int) -> bool:
        headroom = int(self.config.headroom * running)
        if not self._tables.admit(sequence, match, headroom):
            if match.copy_from is None:
                return False
            # A copy holds source and target for a step; in a tight pool the block is computed again instead.
            match = PrefixMatch(match.blocks, None, len(match.blocks) * self.config.block_size)
            if not self._tables.admit(sequence, match, headroom):
                return False
        self._waiting.remove(sequence)
        self._ready[sequence.id] = sequence
        self._admissions += 1
        sequence.admission = self._admissions
        if match.copy_from is not None:
            step.copies.append((match.copy_from, sequence.blocks[len(match.blocks)]))
        if sequence.first_scheduled is None:
            sequence.cached_tokens = min(match.tokens, sequence.prompt_length)
            if self.config.prefix_caching:
                self._queried += sequence.length
                self._hits += match.tokens
        count, _ = self._wanted(sequence, step.budget)
        self._schedule_share(step, sequence, count, ())
        return True

    def _schedule_share(self, step: Step, sequence: SequenceState, count: int, drafts: tuple[int, ...]) -> None:
        start = sequence.computed
        rows = count + len(drafts)
        sequence.computed = start + rows
        step.budget -= rows
        pending = self._tables.begin(sequence)
        step.shares[sequence.id] = Share(sequence, start, rows, drafts, pending)

    def _tell_dropped(self, step: Step) -> tuple[int, ...]:
        for sequence_id in step.shares:
            self._dropped.pop(sequence_id, None)  # a reset says it already
        dropped = tuple(self._dropped)
        self._dropped.clear()
        return dropped

    def _launch(self, step: Step, now: float) -> None:
        """The step is in flight from here on."""
        for share in step.shares.values():
            sequence = share.sequence
            sequence.sent_blocks = len(sequence.blocks)
            sequence.drafts = ()
            sequence.in_flight = True
            sequence.first_scheduled = now if sequence.first_scheduled is None else sequence.first_scheduled
            del self._ready[sequence.id]
            self._scheduled_tokens += share.rows
        self._in_flight[step.number] = step
        self._steps += 1

    def _put_back(self, sequence: SequenceState) -> None:
        """It is in no plan in flight any more."""
        if sequence.finish_reason is not None:
            self._forget(sequence)
        else:
            self._ready[sequence.id] = sequence

    def _forget(self, sequence: SequenceState) -> None:
        """Last act of a sequence that ended and is in no plan in flight."""
        if sequence.sent_blocks:
            self._dropped[sequence.id] = None
        if sequence.request.hand_off and sequence.finish_reason in ("stop", "length"):
            self.handoffs.keep(sequence)
        self._tables.release(sequence)
        del self._sequences[sequence.id]
        self._finished += 1

    # What it knows

    def stats(self) -> SchedulerStats:
        pool = self._tables.pool
        return SchedulerStats(
            waiting=len(self._waiting),
            running=len(self._sequences) - len(self._waiting),
            plans_in_flight=len(self._in_flight),
            blocks_total=pool.total,
            blocks_free=pool.available - pool.cached,
            blocks_cached=pool.cached,
            blocks_owned=pool.owned,
            steps=self._steps,
            scheduled_tokens=self._scheduled_tokens,
            preemptions=self._preemptions,
            queried_tokens=self._queried,
            hit_tokens=self._hits,
            finished=self._finished,
        )

    def take_events(self) -> list[KvEvent]:
        """KV events since the last call, in order; empty unless the configuration records them."""
        return self._tables.pool.take_events()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. For new weights, drain first: live sequences keep what they computed."""
        self._tables.pool.clear_cache()

    def check(self) -> None:
        """Prove that the books balance; raises IntegrityError. O(blocks): for tests and idle moments."""
        flying = [share.sequence for step in self._in_flight.values() for share in step.shares.values()]
        held = [source for step in self._in_flight.values() for source, _ in step.copies]
        self._tables.check([*self._sequences.values()], held + self.handoffs.blocks)
        waiting = [self._waiting[position] for position in range(len(self._waiting))]
        everyone = sorted(sequence.id for sequence in [*waiting, *self._ready.values(), *flying])
        if everyone != sorted(self._sequences):
            raise IntegrityError(f"live requests {sorted(self._sequences)} are not where they belong: {everyone}")
        for sequence in waiting:
            if sequence.blocks or sequence.in_flight:
                raise IntegrityError(f"request {sequence.id} waits and owns blocks {sequence.blocks}")
