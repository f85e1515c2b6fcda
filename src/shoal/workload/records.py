"""What is kept of a request: when it was due, sent, answered; how it ended. Seconds since the start of the run."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shoal.policy.outcomes import Outcome
from shoal.workload.stats import Floats


class Phase(StrEnum):
    WARMUP = "warmup"
    """Before the measured window; the load goes on into it without a pause."""
    MEASURED = "measured"
    TAIL = "tail"
    """Keeps a closed loop's concurrency up until the last measured request is done; not judged."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request and its answer."""

    index: int
    session: int
    turn: int
    phase: Phase
    scheduled: float
    """When it was due: every latency counts from here."""
    sent: float
    """When it was handed to the connection."""
    ended: float
    """When its outcome was known."""
    events: tuple[float, ...]
    """When each event with visible text came."""
    last: float | None
    """When the last event of the answer proper came: text or the finish reason, whichever is later."""
    outcome: Outcome
    status: int | None
    """HTTP status; None: no answer."""
    error: str
    """Why it is not ok; empty if it is."""
    asked_prompt: int | None
    """Tokens the prompt was made to have; None: not known beforehand."""
    asked_output: int
    prompt_tokens: int | None
    """As the server counts, from `usage`."""
    output_tokens: int
    """As the server counts, or else the number of events."""
    output_counted: bool
    """`output_tokens` is the server's count."""
    cached_tokens: int | None
    """Prompt tokens whose KV was reused, as the server says."""
    finish_reason: str | None = None
    replica: str | None = None
    """The `x-shoal-replica` header of a Shoal gateway."""
    sampled: bool = False
    """`events` are some moments of the answer, evenly apart: their gaps are nobody's latency."""
    model: str | None = None
    """The model that it asked for; None: the only one."""
    priority: int = 0

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def schedule_delay(self) -> float:
        return self.sent - self.scheduled

    @property
    def ttft(self) -> float | None:
        """First event with text − scheduled send; None: no text came."""
        return self.events[0] - self.scheduled if self.events else None

    @property
    def e2e(self) -> float | None:
        """Last event of the answer − scheduled send; None unless the answer is whole."""
        return self.last - self.scheduled if self.ok and self.last is not None else None

    @property
    def tpot(self) -> float | None:
        """(E2E − TTFT) / (n − 1); None for fewer than two tokens."""
        if self.ttft is None or self.e2e is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    @property
    def gaps(self) -> Floats:
        """Inter-token latencies: the times between consecutive events with text."""
        return np.diff(np.asarray(() if self.sampled else self.events, dtype=np.float64))
