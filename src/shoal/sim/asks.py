"""A request of a simulation, from its client to its fate."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from shoal.policy.batching import Piece
from shoal.policy.outcomes import Outcome
from shoal.workload.records import Phase


@dataclass(slots=True, eq=False, kw_only=True)
class Ask:
    """What a client asks, and what became of it. Times in nanoseconds."""

    index: int
    session: int
    turn: int
    phase: Phase
    scheduled: int
    pieces: Sequence[Piece]
    prompt: int
    """Tokens of `pieces`."""
    output: int
    answer: Hashable
    """Key of the answer's content."""
    deadline: int
    done: Callable[["Ask", int], None]
    """Called once, when its fate is known."""
    model: str = "model"
    priority: int = 0
    client: str = ""
    name: str = ""
    """Shared by all requests of one session or one agent, for routers that go by sessions."""

    sent: int = 0
    first: int | None = None
    """When the client had its first token."""
    last: int | None = None
    ended: int | None = None
    outcome: Outcome | None = None
    status: int | None = None
    error: str = ""
    tokens: int = 0
    """Output tokens that the client has."""
    cached: int | None = None
    """Prompt tokens whose KV was reused by the leg that began the answer."""
    predicted_hit: int = 0
    replica: str | None = None
    legs: int = 0
    tries: int = 0
    """Legs since its client last got output."""
    continued: int = 0
    preemptions: int = 0
    placed: int | None = None
    """When it got its first lease."""
    begun: int | None = None
    """When the engine first scheduled it."""
    faults: list[str] = field(default_factory=list)
    """What ended its legs, all but the last."""
