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
from shoal.workload.curve import Day
from shoal.workload.lengths import LengthDraw
from shoal.workload.shares import Shares
from shoal.workload.stats import Floats

Role = Literal["system", "user"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt."""

    key: str | int
    """A number: the block of a trace."""
    tokens: int
    role: Role = "user"

    @property
    def name(self) -> str:
        """The key as text, by which contents are drawn."""
        return self.key if isinstance(self.key, str) else f"block/{self.key}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its conversation, and how many tokens it asks for."""

    new: tuple[Segment, ...]
    output: int
    think: float = 0.0
    """Seconds between the end of the previous answer and this request."""
    model: str | None = None
    """None: the one that the fleet or the endpoint serves."""
    priority: int = 0
    """Lower is served first."""


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation; most have one turn.

    `at`: when its first turn is due in an open loop, seconds; where it waits for others, so long after they ended.
    """

    turns: tuple[Turn, ...]
    at: float = 0.0
    after: tuple[int, ...] = ()
    """Places in the load of the sessions whose last answers must be there before it begins: all before its own."""
    name: str = ""
    """Shared by all sessions of one agent, for routers that go by sessions; empty: it stands alone."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions, and where they come from. Those that wait for no other are in order of arrival."""

    sessions: tuple[Session, ...]
    description: str
    rate: float | None = None
    """Mean requested sessions per second, of an open loop: of those that wait for no other."""
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return sum(len(s.turns) for s in self.sessions)

    @property
    def chained(self) -> bool:
        """Whether sessions wait for others, so that only an open loop can run it."""
        return any(s.after for s in self.sessions)


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
    models: Shares | None = None
    """The models that sessions ask for; None: the only one."""
    priorities: Shares | None = None


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
    # A stream of its own: the same sessions, whichever models they ask for.
    classes = np.random.default_rng([seed, 2, *name.encode()])
    models = shape.models.draw(sessions, classes) if shape.models else [None] * sessions
    priorities = [int(p) for p in shape.priorities.draw(sessions, classes)] if shape.priorities else [0] * sessions
    made, place = [], 0
    for s, length in enumerate(turns.tolist()):
        parts = []
        for t in range(length):
            new: tuple[Segment, ...] = (Segment(f"{name}/{s}/{t}", inputs[place]),)
            if t == 0 and shape.shared:
                new = (Segment(f"system/{groups[s]}", shape.shared, "system"), *new)
            parts.append(Turn(new, outputs[place], thinks[place] if t else 0.0, models[s], priorities[s]))
            place += 1
        made.append(Session(tuple(parts)))
    shared = f", {shape.shared} shared tokens in {shape.groups} group(s)" if shape.shared else ""
    several = f", {shape.turns} turns per session" if str(shape.turns) != "1" else ""
    mix = f", models {shape.models}" if shape.models else ""
    mix += f", priorities {shape.priorities}" if shape.priorities else ""
    return Load(tuple(made), f"input {shape.input}, output {shape.output} tokens{several}{shared}{mix}")


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


def over_the_day(load: Load, day: Day, rate: float, times: Floats) -> Load:
    """Return the same sessions, arriving at times of `day_times`.

    Args:
        rate: mean sessions per second over a whole day.
    """
    how = f"poisson arrivals over the day ({day.curve} from {day.start:g} h), {rate:g}/s on average"
    how += f", a day in {day.seconds:g} s" if day.seconds != 86_400 else ""
    span = float(times[-1]) if len(times) else 0.0
    return replace(
        load,
        sessions=arriving(load.sessions, times.tolist()),
        description=f"{how}; {load.description}",
        rate=(len(times) - 1) / (span - float(times[0])) if len(times) > 1 else rate,
    )


def part(load: Load, number: int, of: int) -> Load:
    """Return one of `of` consecutive parts of a load, from 0 on, beginning at its own first arrival.

    Raises SpecError for a load with fewer sessions than parts, and for one whose sessions wait for others.
    """
    if load.chained:
        raise SpecError("rounds", of, "1 for a load whose requests wait for one another: it can't be cut")
    if len(load.sessions) < of:
        raise SpecError("rounds", of, f"at most the {len(load.sessions)} sessions of the load")
    first, last = (len(load.sessions) * n // of for n in (number, number + 1))
    sessions = load.sessions[first:last]
    times = [s.at - sessions[0].at for s in sessions]
    return replace(
        load,
        sessions=arriving(sessions, times),
        description=f"{load.description}, part {number + 1} of {of}",
        rate=(len(times) - 1) / times[-1] if times[-1] > 0 else None,
    )


def arriving(sessions: Sequence[Session], times: Sequence[float]) -> tuple[Session, ...]:
    return tuple(replace(s, at=t) for s, t in zip(sessions, times, strict=True))
