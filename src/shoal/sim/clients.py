"""Those who ask: sessions that arrive at their times, or users who ask again as soon as they are answered.

What `bench.run` does with connections, in virtual time and with the same meanings.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from shoal.policy.batching import Piece
from shoal.policy.outcomes import Outcome
from shoal.sim.asks import Ask
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway
from shoal.workload.chain import Chain
from shoal.workload.load import Load, Segment, Session
from shoal.workload.records import Phase
from shoal.workload.run import RunOptions
from shoal.workload.window import Window

_AFTER_FAILURE = nanoseconds(0.05)


@dataclass(slots=True)
class _Talk:
    """One session as it grows."""

    number: int
    session: Session
    phase: Phase
    turn: int = 0
    pieces: tuple[Piece, ...] = ()
    tokens: int = 0


@dataclass(slots=True)
class _Sender:
    """Makes requests of turns."""

    load: Load
    options: RunOptions
    gateway: SimulatedGateway
    shared: frozenset[Hashable]
    """Keys of contents that occur in more than one session."""
    asks: list[Ask] = field(default_factory=list)

    @classmethod
    def of(cls, load: Load, options: RunOptions, gateway: SimulatedGateway, *, repeats: bool) -> "_Sender":
        """`repeats`: sessions may be sent more than once."""
        counted = Counter(s.key for session in load.sessions for turn in session.turns for s in turn.new)
        return cls(load, options, gateway, frozenset(k for k, n in counted.items() if repeats or n > 1))

    def send(self, talk: _Talk, time: int, done: Callable[[Ask, int], None]) -> None:
        """Send the session's next turn; `done` hears of its fate."""
        turn, several = talk.session.turns[talk.turn], len(talk.session.turns) > 1
        tokens = sum([segment.tokens for segment in turn.new])
        talk.pieces += tuple((s.key, s.tokens) for s in turn.new) if several else self._pieces(turn.new, tokens)
        talk.tokens += tokens
        last = talk.turn + 1 == len(talk.session.turns)
        ask = Ask(
            index=len(self.asks),
            session=talk.number,
            turn=talk.turn,
            phase=talk.phase,
            scheduled=time,
            pieces=talk.pieces,
            prompt=talk.tokens,
            output=turn.output,
            answer=None if last else ("answer", talk.number, talk.turn),
            deadline=time + nanoseconds(self.options.deadline),
            done=done,
            priority=turn.priority,
            name=talk.session.name or str(talk.number),
            model=turn.model or self.gateway.fleet.model,
        )
        self.asks.append(ask)
        self.gateway.send(ask, time)

    def _pieces(self, segments: Sequence[Segment], tokens: int) -> tuple[Piece, ...]:
        """A prompt of a single turn: what it has for itself is one piece, whatever its parts."""
        shared, pieces, left = self.shared, [], tokens
        for segment in segments:
            if segment.key not in shared:
                break
            pieces.append((segment.key, segment.tokens))
            left -= segment.tokens
        return (*pieces, (None, left)) if left else tuple(pieces)

    @staticmethod
    def answered(talk: _Talk, ask: Ask) -> None:
        """Take the answer into the conversation."""
        talk.turn += 1
        talk.pieces += ((ask.answer, ask.tokens),)
        talk.tokens += ask.tokens


class OpenLoop:
    """Sessions at their own times, whatever became of those before."""

    def __init__(self, load: Load, options: RunOptions, gateway: SimulatedGateway, events: Events) -> None:
        self._sender = _Sender.of(load, options, gateway, repeats=False)
        self._sessions = load.sessions
        self._chain = Chain(load)
        self._arriving = [i for i, session in enumerate(load.sessions) if not session.after]
        self._warmup = options.warmup
        self._events = events
        self._next = 0
        self._open = 0
        """Sessions that have begun and not ended, or whose delay after others runs."""

    @property
    def asks(self) -> list[Ask]:
        return self._sender.asks

    def start(self) -> None:
        """Let the first session arrive at its time."""
        self._expect()

    @property
    def finished(self) -> bool:
        return self._next >= len(self._arriving) and not self._open

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of sessions that weren't sent."""
        return self._chain.notes

    def _expect(self) -> None:
        if self._next < len(self._arriving):
            self._events.at(nanoseconds(self._sessions[self._arriving[self._next]].at), self._arrive)

    def _arrive(self, time: int) -> None:
        number = self._arriving[self._next]
        self._next += 1
        self._open += 1
        self._expect()
        self._begin(number, time)

    def _begin(self, number: int, time: int) -> None:
        phase = Phase.WARMUP if number < self._warmup else Phase.MEASURED
        self._send(_Talk(number, self._sessions[number], phase), time)

    def _end(self, number: int, ok: bool, time: int) -> None:
        self._open -= 1
        for ready in self._chain.end(number, ok):
            self._open += 1
            delay = nanoseconds(self._sessions[ready].at)
            self._events.at(time + delay, functools.partial(self._begin, ready))

    def _send(self, talk: _Talk, time: int) -> None:
        self._sender.send(talk, time, lambda ask, t: self._done(talk, ask, t))

    def _done(self, talk: _Talk, ask: Ask, time: int) -> None:
        turns = talk.session.turns
        if ask.outcome is not Outcome.OK or talk.turn + 1 >= len(turns):
            self._end(talk.number, ask.outcome is Outcome.OK, time)
            return
        self._sender.answered(talk, ask)
        self._events.at(time + nanoseconds(turns[talk.turn].think), lambda t: self._send(talk, t))


class ClosedLoop:
    """So many users, each with one request in flight."""

    def __init__(self, load: Load, options: RunOptions, gateway: SimulatedGateway, events: Events) -> None:
        assert options.concurrency is not None
        self._users = options.concurrency
        self._sender = _Sender.of(load, options, gateway, repeats=True)
        self._events = events
        self._sessions: Iterator[tuple[int, Session]] = itertools.cycle(enumerate(load.sessions))
        wanted = options.requests
        if wanted is None and options.seconds is None:
            wanted = max(1, load.requests - options.warmup)
        self.window = Window(options.warmup, wanted, options.seconds)

    @property
    def asks(self) -> list[Ask]:
        return self._sender.asks

    @property
    def finished(self) -> bool:
        return self.window.finished

    def start(self) -> None:
        """Let every user begin a session."""
        for _ in range(self._users):
            self._events.at(0, self._sit_down)

    def _sit_down(self, time: int) -> None:
        number, session = next(self._sessions)
        self._think(_Talk(number, session, Phase.TAIL), time)

    def _think(self, talk: _Talk, time: int) -> None:
        think = talk.session.turns[talk.turn].think
        if think:
            self._events.at(time + nanoseconds(think), lambda t: self._send(talk, t))
        else:
            self._send(talk, time)

    def _send(self, talk: _Talk, time: int) -> None:
        talk.phase = self.window.begin(time / NANOSECONDS)
        self._sender.send(talk, time, lambda ask, t: self._done(talk, ask, t))

    def _done(self, talk: _Talk, ask: Ask, time: int) -> None:
        self.window.end(ask.phase, time / NANOSECONDS)
        if ask.outcome is not Outcome.OK:
            self._events.at(time + _AFTER_FAILURE, self._sit_down)
        elif talk.turn + 1 >= len(talk.session.turns):
            # By an event: a user who is answered at once would otherwise ask from within the answer.
            self._events.at(time, self._sit_down)
        else:
            self._sender.answered(talk, ask)
            self._think(talk, time)
