"""Runs a load against a target: an open loop at its own times, or a closed loop of a given concurrency."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.bench.conversation import Contents, Conversation
from shoal.bench.target import Reply, Target
from shoal.policy.outcomes import Outcome
from shoal.specs.errors import SpecError
from shoal.workload.chain import Chain
from shoal.workload.load import Load, Session, Turn
from shoal.workload.records import Phase, Record
from shoal.workload.run import Progress, RunOptions, RunResult, Silent, open_window
from shoal.workload.window import Window


@dataclass(frozen=True, slots=True)
class _Due:
    """A request on its way: whose it is, and when it was due."""

    session: int
    place: int
    """Of the turn in its session."""
    turn: Turn
    phase: Phase
    scheduled: float
    last: bool
    """No further turn follows, so that the answer's text need not be kept."""


@dataclass(slots=True)
class _State:
    origin: float
    records: list[Record] = field(default_factory=list)
    index: Iterator[int] = field(default_factory=itertools.count)

    def now(self) -> float:
        return time.perf_counter() - self.origin


class Runner:
    """One target, one way to run; `stop` ends a run early with what there is."""

    def __init__(
        self,
        target: Target,
        options: RunOptions,
        stop: asyncio.Event | None = None,
        progress: Progress | None = None,
    ) -> None:
        if options.concurrency is not None and options.concurrency < 1:
            raise SpecError("concurrency", options.concurrency, "1 or more")
        self._target = target
        self._options = options
        self._stop = stop or asyncio.Event()
        self._progress: Progress = progress or Silent()

    async def run(self, load: Load, label: str = "") -> RunResult:
        """Run it to its end, or until `stop`. Every request ends by its deadline, so this does."""
        contents = Contents(self._target, self._options.seed, self._options.salt)
        await contents.prepare(load)
        state = _State(time.perf_counter())
        if self._options.concurrency is None:
            return await self._open(load, contents, state, label)
        return await self._closed(load, contents, state, self._options.concurrency, label)

    # Open loop.

    async def _open(self, load: Load, contents: Contents, state: _State, label: str) -> RunResult:
        warmup = self._options.warmup
        if warmup >= len(load.sessions):
            raise SpecError("warmup", warmup, f"fewer than the {len(load.sessions)} sessions")
        self._progress.begin(label or load.description, load.requests)

        chain = Chain(load)

        def phase(number: int) -> Phase:
            return Phase.WARMUP if number < warmup else Phase.MEASURED

        async def arrive() -> None:
            async with asyncio.TaskGroup() as sessions:

                async def begin(number: int, due: float, conversation: Conversation, body: bytes) -> None:
                    session = load.sessions[number]
                    ok = await self._session(number, session, conversation, body, due, phase(number), state)
                    for ready in chain.end(number, ok):
                        sessions.create_task(follow(ready, state.now() + load.sessions[ready].at))

                async def follow(number: int, due: float) -> None:
                    await begin(number, due, *await prepared(number, due))

                async def prepared(number: int, due: float) -> tuple[Conversation, bytes]:
                    session = load.sessions[number]
                    conversation = Conversation(contents, number, session.name)
                    body = await conversation.body(session.turns[0])
                    await _until(state, due)
                    return conversation, body

                for i, session in enumerate(load.sessions):
                    if session.after:
                        continue
                    sessions.create_task(begin(i, session.at, *await prepared(i, session.at)))
                    # Let it send before the next body is made.
                    await asyncio.sleep(0)

        finished = await self._unless_stopped(arrive())
        records = tuple(sorted(state.records, key=lambda r: (r.scheduled, r.index)))
        start, end = open_window(load, records, warmup)
        notes = (*self._notes(load, contents), *chain.notes)
        return RunResult(records, start, end, load.description, None, load.rate, not finished, notes)

    async def _session(
        self,
        number: int,
        session: Session,
        conversation: Conversation,
        body: bytes,
        scheduled: float,
        phase: Phase,
        state: _State,
    ) -> bool:
        """Whether it came to its end."""
        for t, turn in enumerate(session.turns):
            if t:
                scheduled = state.now() + turn.think
                body = await conversation.body(turn)
                await _until(state, scheduled)
            due = _Due(number, t, turn, phase, scheduled, t + 1 == len(session.turns))
            record = await self._request(due, conversation, body, state)
            if not record.ok:
                return False
        return True

    # Closed loop.

    async def _closed(
        self, load: Load, contents: Contents, state: _State, concurrency: int, label: str
    ) -> RunResult:
        if load.chained:
            accepted = "an open loop: requests of this load wait for one another"
            raise SpecError("concurrency", concurrency, accepted)
        warmup = self._options.warmup
        seconds, wanted = self._options.seconds, self._options.requests
        if wanted is None and seconds is None:
            wanted = max(1, load.requests - warmup)
        self._progress.begin(label or load.description, None if wanted is None else warmup + wanted)
        sessions = itertools.cycle(enumerate(load.sessions))
        counts = Window(warmup, wanted, seconds)
        finished = asyncio.Event()

        async def user() -> None:
            for number, session in sessions:
                conversation = Conversation(contents, number, session.name)
                for t, turn in enumerate(session.turns):
                    scheduled = state.now() + turn.think
                    body = await conversation.body(turn)
                    await _until(state, scheduled)
                    phase = counts.begin(state.now())
                    # The user is ready when the body is: making it is no delay of the server's.
                    ready = max(scheduled, state.now()) if not turn.think else scheduled
                    due = _Due(number, t, turn, phase, ready, t + 1 == len(session.turns))
                    record = await self._request(due, conversation, body, state)
                    counts.end(phase, state.now())
                    if counts.finished:
                        finished.set()
                    if not record.ok:
                        # A server that refuses at once must not be hammered.
                        await asyncio.sleep(_AFTER_FAILURE)
                        break

        async def users() -> None:
            tasks = [asyncio.create_task(user()) for _ in range(concurrency)]
            done = asyncio.create_task(finished.wait())
            try:
                await asyncio.wait([done, *tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for ending in (done, *tasks):
                    ending.cancel()
                await asyncio.gather(done, *tasks, return_exceptions=True)

        whole = await self._unless_stopped(users())
        records = tuple(sorted(state.records, key=lambda r: (r.scheduled, r.index)))
        measured = [r for r in records if r.phase is Phase.MEASURED]
        start = counts.opened if counts.opened is not None else state.now()
        end = max((r.ended for r in measured), default=start)
        name = f"closed loop, {concurrency} in flight; {load.description}"
        notes = self._notes(load, contents)
        if len(records) > load.requests:
            notes += ("the load was repeated: later requests may find their prompts cached",)
        return RunResult(records, start, end, name, concurrency, None, not whole, notes)

    # Both.

    async def _request(self, due: _Due, conversation: Conversation, body: bytes, state: _State) -> Record:
        index = next(state.index)
        sent = state.now()
        asked = conversation.prompt_tokens

        def record(reply: Reply) -> Record:
            made = _record(index, due, sent, asked, reply, state.origin)
            state.records.append(made)
            return made

        try:
            reply = await self._target.send(body, self._options.deadline, keep_text=not due.last)
        except asyncio.CancelledError:
            reply = Reply(
                sent, ended=time.perf_counter(), outcome=Outcome.CANCELLED, error="the benchmark was stopped"
            )
            record(reply)
            raise
        if not due.last and reply.outcome is Outcome.OK:
            conversation.answered(due.turn, reply)
        made = record(reply)
        if due.phase is not Phase.TAIL:
            self._progress.advance(made.ok)
        return made

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work came to its end before `stop`; cancelled and waited for if not."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            task.cancel()
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def _notes(self, load: Load, contents: Contents) -> tuple[str, ...]:
        notes = (*load.notes, *self._target.notes)
        several = any(len(s.turns) > 1 for s in load.sessions)
        if several and contents.ids is not None and not self._target.returns_ids:
            notes += ("the server returns no token ids: answers in later prompts are made-up ids of their length",)
        return notes


_AFTER_FAILURE = 0.05


async def _until(state: _State, moment: float) -> None:
    left = moment - state.now()
    if left > 0:
        await asyncio.sleep(left)


def _record(index: int, due: _Due, sent: float, asked: int | None, reply: Reply, origin: float) -> Record:
    usage = reply.usage
    counted = usage.completion_tokens if usage else None
    details = usage.prompt_tokens_details if usage else None
    return Record(
        index=index,
        session=due.session,
        turn=due.place,
        phase=due.phase,
        scheduled=due.scheduled,
        sent=sent,
        ended=reply.ended - origin,
        events=tuple(t - origin for t in reply.events),
        last=reply.last - origin if reply.last is not None else None,
        outcome=reply.outcome,
        status=reply.status,
        error=reply.error,
        asked_prompt=asked,
        asked_output=due.turn.output,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=counted if counted is not None else len(reply.events),
        output_counted=counted is not None,
        cached_tokens=details.cached_tokens if details else None,
        finish_reason=reply.finish_reason,
        replica=reply.replica,
        model=due.turn.model,
        priority=due.turn.priority,
    )
