"""What is known of a request when it has ended: the one thing that metrics, logs, traces and dashboard read."""

from dataclasses import dataclass
from typing import Protocol

from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision


@dataclass(slots=True)
class RequestRecord:
    """Filled in along the way. Times are the gateway's monotonic clock, in seconds."""

    request_id: str
    path: str
    method: str
    arrived: float
    client: str = ""
    """Network address."""
    key: str = ""
    """Name of the API key, never the key."""
    model: str = ""
    """A model that is served, or empty: what clients make up is no label."""
    pool: str = ""
    replica: str = ""
    reason: str = ""
    status: int = 0
    outcome: Outcome | None = None
    """Of the request as the client saw it; None where no replica was asked for."""
    streamed: bool = False
    predicted_ttft: float = 0.0
    predicted_hit: int = 0
    actual_hit: int | None = None
    """None: the engine didn't say."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    leased: float | None = None
    """When a replica was selected; before that it waited in the admission queue."""
    first_token: float | None = None
    last_token: float | None = None
    prefill: str = ""
    """The replica that computed its prompt, where that was another one."""
    prefill_seconds: float | None = None
    """From its selection to its hand-off, the wait in its queue included."""
    chunks: int = 0
    ended: float = 0.0
    attempts: int = 0
    continued: int = 0
    """Times its stream was carried on by another replica."""
    bytes_sent: int = 0
    traceparent: str = ""


class Observer(Protocol):
    """Told about requests; must be quick, and must not raise."""

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        """A replica was selected."""
        return

    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
        """A replica's part of a request is over."""
        return

    def on_finished(self, record: RequestRecord) -> None:
        """The request is over."""
        return

    def on_distrust(self, replica: str, trust: float) -> None:
        """Predicted hits of this replica stopped coming true."""
        return


class Observers:
    """Several as one."""

    def __init__(self) -> None:
        self.all: list[Observer] = []

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        for observer in self.all:
            observer.on_decision(record, decision)

    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
        for observer in self.all:
            observer.on_leg(record, pool, replica, outcome)

    def on_finished(self, record: RequestRecord) -> None:
        for observer in self.all:
            observer.on_finished(record)

    def on_distrust(self, replica: str, trust: float) -> None:
        for observer in self.all:
            observer.on_distrust(replica, trust)
