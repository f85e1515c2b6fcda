"""Production traces as loads: Azure's CSV (lengths and times) and Mooncake's JSONL (prefix structure besides, and
requests that wait for others).

`shoal.plan.readers.trace` reads the files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.plan.readers.trace import BLOCK_TOKENS, TraceRequest, read_trace
from shoal.specs.errors import SpecError
from shoal.workload.arrivals import scaled_times
from shoal.workload.load import Load, Segment, Session, Turn

__all__ = ["BLOCK_TOKENS", "Cut", "TraceRequest", "read_trace", "trace_load"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a trace is replayed, and how it is fitted to a smaller model or machine."""

    limit: int | None = None
    """At most this many requests."""
    start: float = 0.0
    """Skip this many seconds of the trace."""
    length_scale: float = 1.0
    """Multiplies every length, block by block: what was shared stays shared."""
    max_input: int | None = None
    """Longer prompts lose their end; a conversation ends before its prompt gets longer."""
    max_output: int | None = None
    models: bool = False
    """Every request goes to the model that its line names; else the trace's models don't matter."""


@dataclass(slots=True)
class _Growing:
    """A session as its turns are read."""

    turns: list[Turn]
    at: float
    """Of a session that waits: its delay."""
    after: tuple[int, ...]
    name: str
    tokens: int
    """Of its last prompt and answer, scaled and cut."""
    ended: bool = False
    """Its next prompt was too long."""


@dataclass(slots=True)
class _Sessions:
    """Requests of a trace put together to sessions."""

    cut: Cut
    made: list[_Growing] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Request id → session."""
    known: dict[int, Segment] = field(default_factory=dict)
    """Block → its segment."""
    clipped: int = 0
    dropped: int = 0

    def add(self, index: int, request: TraceRequest, at: float) -> None:
        waits = tuple(dict.fromkeys(self.places[r] for r in request.after if r in self.places))
        if request.new and waits:
            self._continue(index, request, waits[0])
            return
        whole = _segments(index, request, self.cut.length_scale, self.known)
        kept = _clip(whole, self.cut.max_input)
        turn = self._turn(request, kept, 0.0, kept != whole)
        due = request.delay if waits else at
        self._place(request, len(self.made))
        self.made.append(_Growing([turn], due, waits, request.session, _tokens(kept) + turn.output))

    def _continue(self, index: int, request: TraceRequest, place: int) -> None:
        session = self.made[place]
        self._place(request, place)
        scale, most = self.cut.length_scale, self.cut.max_input
        new = max(1, round(request.new * scale))
        if most is not None and session.tokens + new > most:
            session.ended = True
        if session.ended:
            self.dropped += 1
            return
        turn = self._turn(request, (Segment(f"trace/{index}", new),), request.delay, cut=False)
        session.turns.append(turn)
        session.tokens += new + turn.output

    def _place(self, request: TraceRequest, place: int) -> None:
        if request.id:
            self.places[request.id] = place

    def _turn(self, request: TraceRequest, new: tuple[Segment, ...], think: float, cut: bool) -> Turn:
        output = max(1, round(request.output * self.cut.length_scale))
        wanted = min(output, self.cut.max_output or output)
        self.clipped += cut or wanted != output
        return Turn(new, wanted, think, request.model if self.cut.models else None, request.priority)

    @property
    def notes(self) -> tuple[str, ...]:
        total = sum(len(s.turns) for s in self.made) + self.dropped
        notes = []
        if self.clipped:
            notes.append(f"{self.clipped} of {total} trace requests were shortened to fit the limits")
        if self.dropped:
            notes.append(f"{self.dropped} of {total} trace requests were left out: their conversation is too long")
        return tuple(notes)


def trace_load(path: Path, cut: Cut, speed: float = 1.0, rate: float | None = None) -> Load:
    """A trace as sessions at its own times, `speed` times as fast or with mean rate `rate`.

    Only arrivals are made faster: the delays of requests that wait for others are those of users and tools.
    """
    if not 0 < cut.length_scale <= 1000:
        raise SpecError("length_scale", cut.length_scale, "a factor above 0 and at most 1000")
    requests = read_trace(path, cut.limit, cut.start)
    times = _arrivals(requests, speed, rate)
    sessions = _Sessions(cut)
    for i, (request, at) in enumerate(zip(requests, times, strict=True)):
        sessions.add(i, request, at)
    made = tuple(Session(tuple(s.turns), s.at, s.after, s.name) for s in sessions.made)
    arriving = [s.at for s in made if not s.after]
    span = arriving[-1]
    how = f"at {rate:g}/s" if rate is not None else f"at {speed:g}x its own speed"
    scale = f", lengths x{cut.length_scale:g}" if cut.length_scale != 1 else ""
    mean = (len(arriving) - 1) / span if span > 0 else None
    return Load(made, f"trace {path.name} {how}{scale}", mean, sessions.notes)


def _arrivals(requests: Sequence[TraceRequest], speed: float, rate: float | None) -> list[float]:
    """When each request arrives; of those that wait for another of the selection, the figure is not used."""
    selected = {r.id for r in requests if r.id}
    arriving = [i for i, r in enumerate(requests) if not any(name in selected for name in r.after)]
    times = np.zeros(len(requests))
    times[arriving] = scaled_times(np.asarray([requests[i].at for i in arriving]), speed, rate)
    found: list[float] = times.tolist()
    return found


def _segments(index: int, request: TraceRequest, scale: float, known: dict[int, Segment]) -> tuple[Segment, ...]:
    """The prompt's segments; `known` are those of whole blocks, which many requests share."""
    if not request.blocks:
        return (Segment(f"trace/{index}", max(1, round(request.input * scale))),)
    block = max(1, round(BLOCK_TOKENS * scale))
    last = request.input - BLOCK_TOKENS * (len(request.blocks) - 1)
    tail = min(block, max(1, round(last * scale)))
    found = []
    for number in request.blocks[:-1]:
        segment = known.get(number)
        if segment is None:
            segment = known[number] = Segment(number, block)
        found.append(segment)
    return (*found, Segment(request.blocks[-1], tail))


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(s.tokens for s in segments)


def _clip(segments: tuple[Segment, ...], most: int | None) -> tuple[Segment, ...]:
    if most is None:
        return segments
    kept, left = [], most
    for segment in segments:
        if left <= 0:
            break
        kept.append(Segment(segment.key, min(segment.tokens, left), segment.role))
        left -= segment.tokens
    return tuple(kept)
