"""The scheduler over tokens that are only counted, and its steps many at a time: what a simulated replica holds.

Nothing is decided here. `CountedScheduler` is `Scheduler` with two additions: steps that end without a model's
answer (every sequence whose rows reach its end gets one token, until its `max_tokens`), and `advance`, which does
at once what so many single steps would do, while nothing but decoding can happen.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec

from shoal.policy.batching.config import SchedulerConfig
from shoal.policy.batching.content import ChainHasher, CountedTokens, Piece
from shoal.policy.batching.request import FinishReason, Output, SequenceState
from shoal.policy.batching.scheduler import LOOK_PAST, Scheduler
from shoal.policy.batching.step import Step

_FAR = 1 << 62


@dataclass(slots=True, eq=False, kw_only=True)
class CountedRequest:
    """A request whose tokens are counted (`Asked`). It ends at `max_tokens`, like one that ignores stop tokens."""

    id: int
    pieces: Sequence[Piece]
    prompt_length: int
    """Tokens of `pieces`."""
    max_tokens: int | None
    answer: Hashable = None
    """Key of its answer; None: no later prompt contains it."""
    hashes: tuple[bytes, ...] = ()
    """Names of its full blocks from the first on, if known: `ChainHasher.chain`."""
    priority: int = 0
    arrival: float | None = None
    output_length: int = 0
    hand_off: bool = False
    cache_salt: str | None = None
    lora: str | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = True
    guided: bool = False
    prompt_logprobs: bool = False

    def known(self) -> CountedTokens:
        """See `Asked.known`."""
        length = self.prompt_length + self.output_length
        return CountedTokens(self.pieces, self.prompt_length, self.answer, length)

    def first_block(self, size: int) -> Hashable:
        """See `Asked.first_block`."""
        tokens, size = self.known(), min(size, self.prompt_length)
        return tokens.content(0, size) if size <= tokens.unique else self.id


class Quiet(msgspec.Struct, frozen=True):
    """Steps that differ by nothing but one more token a sequence, the last of which may end sequences."""

    steps: int
    sequences: int
    cached: int
    """Tokens in the cache after the first of these steps, of all sequences together; each step adds `sequences`."""
    progressed: float | None
    """Of the waiting request that will be aged first; None: nobody will be."""
    bound: float
    """Seconds after which it is."""

    def may_begin(self, now: float) -> bool:
        """Whether a step that begins at `now` still finds everything as it is."""
        return self.progressed is None or not now - self.progressed > self.bound


class Ended(msgspec.Struct, frozen=True):
    """What a step, or several, changed for requests."""

    first: Sequence[SequenceState]
    """Got their first token."""
    finished: Sequence[SequenceState]


class CountedScheduler(Scheduler):
    """`Scheduler` for one plan in flight at a time or more; `quiet` and `advance` are for one."""

    def __init__(self, config: SchedulerConfig, hasher: ChainHasher) -> None:
        super().__init__(config, hasher)
        self._was_blocked = False
        """The last step decoded only, and the first in line didn't fit; nothing has changed since."""
        self._changed = False
        """The queue or the memory was changed from outside since the step in flight was composed."""

    def add(self, request: CountedRequest, now: float) -> None:  # type: ignore[override]
        """Queue a request. Raises RequestRefused if it could never be served."""
        super().add(request, now)
        self.recheck()
        if request.hashes:
            self._sequences[request.id].hashes = list(request.hashes)

    def finish(self, request_id: int, reason: FinishReason, error: str | None = None) -> Output | None:
        """See `Scheduler.finish`."""
        self.recheck()
        return super().finish(request_id, reason, error)

    def begin(self, now: float) -> Step | None:
        """Begin the next step: `Scheduler.schedule` without the message to ranks. It ends with `end`."""
        self._changed = False
        step = self._compose(now)
        if step is not None:
            self._dropped.clear()
            self._launch(step, now)
        return step

    def begin_alike(self, now: float) -> Step:
        """Begin one of the steps of `quiet`: of nothing that has been queued since they began."""
        step = self._new_step()
        self._continue_ready(step)
        step.blocked = self._was_blocked
        self._launch(step, now)
        return step

    def end(self, step: Step, now: float) -> Ended:
        """End a step: `Scheduler.complete` where every sequence that was due a token got one."""
        del self._in_flight[step.number]
        tables = self._tables
        if step.copies:
            tables.pool.release([source for source, _ in step.copies])
        first, finished, prefill = [], [], bool(step.copies)
        for share in step.shares.values():
            sequence = share.sequence
            sequence.in_flight = False
            if share.pending:
                tables.settle(share.pending)
            prefill = prefill or share.rows > 1
            if sequence.finish_reason is None and share.samples:
                sequence.finish_reason = sequence.accept(0)
                sequence.progressed = now
                if sequence.first_token is None:
                    sequence.first_token, prefill = now, True
                    first.append(sequence)
                if sequence.finish_reason is not None:
                    finished.append(sequence)
            tables.commit(sequence)
            self._put_back(sequence)
        self._was_blocked = step.blocked and not (prefill or finished or self._changed)
        return Ended(first, finished)

    def recheck(self) -> None:
        """The queue or the memory was changed from outside: whoever didn't fit may fit now."""
        self._was_blocked, self._changed = False, True

    def get(self, request_id: int) -> SequenceState | None:
        """A live request; None: it isn't."""
        return self._sequences.get(request_id)

    @property
    def live(self) -> list[int]:
        """Ids of the requests that haven't ended."""
        return [s.id for s in self._sequences.values() if s.finish_reason is None]

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._sequences) - len(self._waiting)

    def owned_after(self, steps: int) -> int:
        """Blocks owned once so many steps of `quiet` have begun."""
        size = self.config.block_size
        taken = sum(max(0, -(-(s.computed + steps) // size) - len(s.blocks)) for s in self._ready.values())
        return self._tables.pool.owned + taken

    # Many steps at once

    def quiet(self) -> Quiet | None:
        """The steps that can be done at once from here; None: the next has to be done by itself."""
        ready = self._ready
        if not ready or self._in_flight or len(ready) > self.config.token_budget or not self._stays_out():
            return None
        steps, cached = _FAR, 0
        for sequence in ready.values():
            length = len(sequence.tokens)
            if length - sequence.computed != 1 or sequence.first_token is None or sequence.drafts:
                return None
            left = sequence.limit - length
            if left < steps:
                steps = left
            cached += length
        steps = self._affordable(steps)
        if steps < 2:
            return None
        return Quiet(steps, len(ready), cached, self._waiting.next_due, self.config.starvation_bound)

    def _stays_out(self) -> bool:
        """Whether no waiting request can be admitted while sequences only decode."""
        waiting = self._waiting
        if not len(waiting):
            return True
        if len(self._ready) >= self.config.max_sequences:
            return True
        if not self._was_blocked:
            return False
        # Decoding takes blocks and gives none back, so whoever didn't fit doesn't: unless an answer that is being
        # generated here were part of a waiting prompt.
        answers = {_answer_of(sequence) for sequence in self._ready.values()} - {None}
        for position in range(min(len(waiting), LOOK_PAST)):
            sequence = waiting[position]
            if sequence.awaits is not None or not answers.isdisjoint(_keys_of(sequence)):
                return False
        return True

    def _affordable(self, steps: int) -> int:
        """How many of so many steps there are blocks for."""
        size, available = self.config.block_size, self._tables.pool.available

        def missing(count: int) -> int:
            return sum(-(-(s.computed + count) // size) - len(s.blocks) for s in self._ready.values())

        if len(self._ready) * (steps // size + 1) <= available or missing(steps) <= available:
            return steps
        low, high = 0, steps  # missing(low) <= available < missing(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if missing(middle) <= available else (low, middle)
        return low

    def advance(self, steps: int, now: float) -> Ended:
        """Do `steps` steps of `quiet` at once; the last of them ends at `now`."""
        ready, size = self._ready, self.config.block_size
        changes: list[tuple[int, int, int, SequenceState]] = []
        """(step, 0: gets a block | 1: has filled one, place in the step, sequence)"""
        for place, sequence in enumerate(ready.values()):
            computed = sequence.computed
            full = computed // size
            room = len(sequence.blocks) * size - computed
            while room < steps:
                changes.append((room, 0, place, sequence))
                room += size
            fills = (full + 1) * size - computed - 1
            while fills < steps:
                changes.append((fills, 1, place, sequence))
                fills += size
        if len(changes) > 1:
            changes.sort(key=_in_order)
        self._change(changes)
        finished = []
        for sequence in ready.values():
            tokens = sequence.tokens
            assert isinstance(tokens, CountedTokens)
            tokens.length += steps
            sequence.computed += steps
            sequence.progressed = now
            sequence.sent_blocks = len(sequence.blocks)
            if tokens.length >= sequence.limit:
                sequence.finish_reason = "length"
                finished.append(sequence)
        self._scheduled_tokens += steps * len(ready)
        self._steps += steps
        for sequence in finished:
            del ready[sequence.id]
            self._forget(sequence)
        self._was_blocked = self._was_blocked and not finished
        return Ended((), finished)

    def _change(self, changes: Sequence[tuple[int, int, int, SequenceState]]) -> None:
        """Hand out and register blocks in the order in which single steps would."""
        size, tables = self.config.block_size, self._tables
        for _, kind, _, sequence in changes:
            if kind == 0:
                sequence.blocks += tables.pool.allocate(1)
                continue
            tokens, computed = sequence.tokens, sequence.computed
            assert isinstance(tokens, CountedTokens)
            length = tokens.length
            # As they are at the end of the step that fills the block.
            sequence.computed = (sequence.committed + 1) * size
            tokens.length = sequence.computed + 1
            tables.commit(sequence)
            sequence.computed, tokens.length = computed, length


def _in_order(change: tuple[int, int, int, SequenceState]) -> tuple[int, int, int]:
    return change[:3]


def _answer_of(sequence: SequenceState) -> Hashable:
    assert isinstance(sequence.request, CountedRequest)
    return sequence.request.answer


def _keys_of(sequence: SequenceState) -> list[Hashable]:
    assert isinstance(sequence.request, CountedRequest)
    return [key for key, _ in sequence.request.pieces]
