"""What is asked of an endpoint: sessions of one or more turns, made beforehand from a seed.

A prompt is a sequence of segments. A segment's content is a pure function of (seed, key), and a shorter segment is
the beginning of a longer one of the same key: sharing a key is sharing a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from shoal.specs.errors import SpecError
from shoal.workload.arrivals import arrival_times
from shoal.workload.lengths import LengthDraw

Role = Literal["system", "user"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt."""

    key: str
    tokens: int
    role: Role = "user"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its conversation, and how many tokens it asks for."""

    new: tuple[Segment, ...]
    output: int
    think: float = 0.0
    """Seconds between the end of the previous answer and this request."""


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation; most have one turn. `at`: when its first turn is due in an open loop, seconds."""

    turns: tuple[Turn, ...]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions in order of arrival, and where they come from."""

    sessions: tuple[Session, ...]
    description: str
    rate: float | None = None
    """Mean requested sessions per second, of an open loop."""
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return sum(len(s.turns) for s in self.sessions)


@dataclass(frozen=True, slots=True)
class Shape:
    """How made-up requests look."""

    input: LengthDraw = field(default_factory=lambda: LengthDraw("fixed", 128))
    """Tokens that a turn adds, of which `shared` (first turn) are common."""
    output: LengthDraw = field(default_factory=lambda: LengthDraw("fixed", 128))
    turns: LengthDraw = field(default_factory=lambda: LengthDraw("fixed", 1))
    think: float = 0.0
    """Mean seconds between turns, exponential."""
    shared: int = 0
    """Tokens of a system prompt that sessions of a group share, on top of `input`."""
    groups: int = 1
    """How many different system prompts there are."""


def made_up(shape: Shape, sessions: int, seed: int, name: str = "") -> Load:
    """`sessions` conversations of this shape, all due at 0. `name` keeps different loads of one seed apart."""
    if sessions < 1:
        raise SpecError("requests", sessions, "1 or more")
    rng = np.random.default_rng([seed, *name.encode()])
    turns = shape.turns.draw(sessions, rng)
    total = int(turns.sum())
    inputs, outputs = shape.input.draw(total, rng).tolist(), shape.output.draw(total, rng).tolist()
    thinks = rng.exponential(shape.think, size=total).tolist() if shape.think > 0 else [0.0] * total
    groups = rng.integers(shape.groups, size=sessions).tolist()
    made, place = [], 0
    for s, length in enumerate(turns.tolist()):
        parts = []
        for t in range(length):
            new: tuple[Segment, ...] = (Segment(f"{name}/{s}/{t}", inputs[place]),)
            if t == 0 and shape.shared:
                new = (Segment(f"system/{groups[s]}", shape.shared, "system"), *new)
            parts.append(Turn(new, outputs[place], thinks[place] if t else 0.0))
            place += 1
        made.append(Session(tuple(parts)))
    shared = f", {shape.shared} shared tokens in {shape.groups} group(s)" if shape.shared else ""
    several = f", {shape.turns} turns per session" if str(shape.turns) != "1" else ""
    return Load(tuple(made), f"input {shape.input}, output {shape.output} tokens{several}{shared}")


def at_times(load: Load, process: str, rate: float, seed: int, cv: float = 1.0, name: str = "") -> Load:
    """Return the same sessions, arriving by a process of `rate` sessions per second.

    `name` gives loads of one seed and rate different times: a rate that is repeated is not the same sample twice.
    """
    # A stream of its own: the same requests at another rate differ in nothing but their times.
    times = arrival_times(process, rate, len(load.sessions), np.random.default_rng([seed, 1, *name.encode()]), cv)
    how = "all at once" if process == "burst" else f"{process} arrivals at {rate:g}/s"
    how += f" (cv {cv:g})" if process == "gamma" else ""
    return replace(
        load,
        sessions=arriving(load.sessions, times.tolist()),
        description=f"{how}; {load.description}",
        rate=None if process == "burst" else rate,
    )


def arriving(sessions: Sequence[Session], times: Sequence[float]) -> tuple[Session, ...]:
    return tuple(replace(s, at=t) for s, t in zip(sessions, times, strict=True))
