"""What follows when a leg of a request fails: the request is sent again, its stream is continued, or it fails.

| the client has   | outcome                            | what follows                                        |
|------------------|------------------------------------|-----------------------------------------------------|
| nothing          | retryable (`policy.outcomes`)      | another replica; the same one if it is the only one |
| nothing          | backpressure, no other replica     | it fails: the same one would refuse again           |
| part of a stream | retryable, or a deadline (a stall) | continued where that is exact                       |
| either           | any other                          | it fails                                            |

Attempts and a budget over all requests limit both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.policy.outcomes import MEANINGS, Outcome
from shoal.policy.routing.contracts import ReplicaState, RouteRequest
from shoal.policy.routing.filters import serves


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    attempts: int = 3
    """Legs of one request since its client last got output."""
    share: float = 0.2
    """Retries per request, over all requests."""
    across_engines: bool = False
    """Whether a stream may be continued on other weights or another engine than it began on."""


@dataclass(slots=True)
class RetryBudget:
    """Limits retries to a share of recent requests, so that they never double an overload.

    A bucket of tokens: every request puts `share` in, every retry takes one out. `floor` tokens are there from the
    start and return at `floor` per `seconds`, so that a quiet fleet can retry too.
    """

    share: float = 0.2
    floor: float = 10.0
    seconds: float = 10.0
    cap: float = 100.0
    _tokens: float = field(init=False)
    _refilled: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"retry share is {self.share}; it must be between 0 and 1")
        self._tokens = self.floor

    def on_request(self, now: float) -> None:
        self._tokens = min(self.cap, self._tokens + self.share)
        self._refill(now)

    def take(self, now: float) -> bool:
        """Take one retry out; False: there is none."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now: float) -> None:
        since = 0.0 if self._refilled is None else now - self._refilled
        self._refilled = now
        if self._tokens < self.floor:
            self._tokens = min(self.floor, self._tokens + since * self.floor / self.seconds)


@dataclass(frozen=True, slots=True)
class Failure:
    """A leg that failed."""

    request: RouteRequest
    replica: ReplicaState
    outcome: Outcome
    attempts: int
    """Legs of the request since its client last got output, this one included."""


class RetryPolicy:
    """Decides for all requests of one gateway; told the time.

    `retry` and `resume` return the request to route next, or None: it fails. `states` are those of all replicas.
    """

    def __init__(self, config: RetryConfig | None = None) -> None:
        self.config = config or RetryConfig()
        self._budget = RetryBudget(self.config.share)

    def on_request(self, now: float) -> None:
        """Count a request: it pays for a share of a retry."""
        self._budget.on_request(now)

    def retry(self, failure: Failure, states: Sequence[ReplicaState], now: float) -> RouteRequest | None:
        """Decide on a request whose client has nothing of an answer yet."""
        outcome = failure.outcome
        if not MEANINGS[outcome].retry or failure.attempts >= self.config.attempts:
            return None
        further = _without(failure.request, failure.replica, states)
        if not further.excluded and outcome is Outcome.BACKPRESSURE:
            return None
        return further if self._budget.take(now) else None

    def resume(
        self,
        failure: Failure,
        states: Sequence[ReplicaState],
        now: float,
        *,
        unable: frozenset[str],
        sent_tokens: int,
    ) -> RouteRequest | None:
        """Decide on a stream of which the client has `sent_tokens`; `unable` replicas can't continue it."""
        outcome, request = failure.outcome, failure.request
        retryable = MEANINGS[outcome].retry or outcome is Outcome.DEADLINE
        if not retryable or failure.attempts >= self.config.attempts or not self._budget.take(now):
            return None
        rest = replace(
            request,
            weights=request.weights if self.config.across_engines else failure.replica.weights,
            max_tokens=max(1, request.max_tokens - sent_tokens),
        )
        return _without(rest, failure.replica, states, unable)


def _without(
    request: RouteRequest,
    failed: ReplicaState,
    states: Sequence[ReplicaState],
    unable: frozenset[str] = frozenset(),
) -> RouteRequest:
    """Exclude the failed replica, unless no other is left, and in any case those that are `unable`.

    A reset connection is no reason to give up on the only replica.
    """
    excluded = request.excluded | {failed.name} | unable
    others = any(state.serving and serves(request, state) for state in states if state.name not in excluded)
    return replace(request, excluded=excluded if others else unable)
