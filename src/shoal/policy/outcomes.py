"""The seven ways a request leg can end. Retries, breakers, metrics and scaling read nothing else.

| outcome           | retried elsewhere before the first byte | breaker  | whose doing        |
|-------------------|-----------------------------------------|----------|--------------------|
| `ok`              | –                                       | success  |                    |
| `client_error`    | no                                      | nothing  | the client's       |
| `backpressure`    | yes                                     | nothing  | the load's         |
| `replica_fault`   | yes                                     | fault    | the replica's      |
| `transport_fault` | yes                                     | fault    | the network's      |
| `cancelled`       | no                                      | nothing  | the client's       |
| `deadline`        | no                                      | nothing  | the load's         |

A deadline alone says nothing about health: under overload every replica misses some. A replica that gives nothing
to anybody is found by hang detection, which ends its legs as `replica_fault`.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

BreakerSign = Literal["success", "fault", "nothing"]


class Outcome(StrEnum):
    OK = "ok"
    CLIENT_ERROR = "client_error"
    BACKPRESSURE = "backpressure"
    REPLICA_FAULT = "replica_fault"
    TRANSPORT_FAULT = "transport_fault"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What follows from an outcome."""

    retry: bool
    """Another replica may answer it, as long as the client has seen no byte."""
    breaker: BreakerSign
    status: int
    """HTTP status for the client where the gateway has to make up the answer itself."""


MEANINGS = MappingProxyType(
    {
        Outcome.OK: Meaning(retry=False, breaker="success", status=200),
        Outcome.CLIENT_ERROR: Meaning(retry=False, breaker="nothing", status=400),
        Outcome.BACKPRESSURE: Meaning(retry=True, breaker="nothing", status=503),
        Outcome.REPLICA_FAULT: Meaning(retry=True, breaker="fault", status=502),
        Outcome.TRANSPORT_FAULT: Meaning(retry=True, breaker="fault", status=502),
        Outcome.CANCELLED: Meaning(retry=False, breaker="nothing", status=499),
        Outcome.DEADLINE: Meaning(retry=False, breaker="nothing", status=504),
    }
)


class LegFailed(Exception):
    """A leg ended without a usable answer. The message is for operators and names no secret."""

    def __init__(self, outcome: Outcome, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry_after = retry_after
        """Seconds that the replica asked to wait, if it did."""


_BACKPRESSURE = frozenset({429, 503, 529})
# The gateway speaks to replicas with its own credentials: a refusal of those is never the client's doing. 408 means
# that our body did not arrive.
_REPLICA = frozenset({401, 403, 407, 421})


def outcome_of_status(status: int) -> Outcome:
    """The outcome that a replica's HTTP status means. Redirects are faults: an endpoint has one address."""
    if 200 <= status < 300:
        return Outcome.OK
    if status in _BACKPRESSURE:
        return Outcome.BACKPRESSURE
    if status == 408:
        return Outcome.TRANSPORT_FAULT
    if status == 499:
        return Outcome.CANCELLED
    if status == 504:
        return Outcome.DEADLINE
    if status in _REPLICA:
        return Outcome.REPLICA_FAULT
    if 400 <= status < 500 or status == 501:
        return Outcome.CLIENT_ERROR
    return Outcome.REPLICA_FAULT


def outcome_of_exception(error: BaseException) -> Outcome:
    """The outcome of a leg that an exception ended: what says so itself, then time, then the wire."""
    if isinstance(error, LegFailed):
        return error.outcome
    if isinstance(error, TimeoutError):
        return Outcome.DEADLINE
    if isinstance(error, OSError | EOFError):
        return Outcome.TRANSPORT_FAULT
    if isinstance(error, Exception):
        return Outcome.REPLICA_FAULT
    # CancelledError, GeneratorExit, KeyboardInterrupt: somebody stopped us, nobody failed.
    return Outcome.CANCELLED
