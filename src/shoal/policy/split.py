"""Prefill on one replica, decode on another: which requests are split, and what follows when a prefill fails.

The decode replica is chosen first. A prefill that fails costs no request: another prefill replica is tried, and at
last the decode replica computes the prompt itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shoal.policy.outcomes import MEANINGS, Outcome
from shoal.policy.routing.contracts import ReplicaState, RouteRequest

NextStep = Literal["retry", "whole", "fail"]
"""After a failed prefill: try another prefill replica, let the decode replica compute the prompt, or refuse."""

FETCH_SECONDS = 60.0
"""An engine gives up a transfer of KV that takes longer, and computes the prompt itself."""
_QUEUE_WARNING = 3
"""Prompts at one prefill replica from which on the queue is reported, and how often."""
_QUEUE_WARNING_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConfig:
    threshold_tokens: int = 256
    """Prompts with fewer tokens to compute stay whole: the hand-off would cost more than it saves."""
    prefill_seconds: float = 60.0
    """A prefill that hasn't answered within this is given up."""
    attempts: int = 2
    """Prefill replicas tried for one request."""


@dataclass(frozen=True, slots=True)
class PrefillQueue:
    """A queue at a prefill replica that is worth reporting."""

    prompts: int
    seconds: float
    """Predicted time to compute all of them."""
    decoding: int
    """Sequences that decode replicas generate meanwhile."""


@dataclass(slots=True)
class HandoffCounts:
    """KV that prefill replicas handed over: `handed == taken + released + lost + live`."""

    handed: int = 0
    taken: int = 0
    """A decode replica fetched it."""
    released: int = 0
    """No decode came; it was fetched and dropped."""
    lost: int = 0
    """It could not be released; the engine does after its own timeout."""

    @property
    def live(self) -> int:
        """Hand-offs that were neither taken nor released yet."""
        return self.handed - self.taken - self.released - self.lost


class SplitPolicy:
    """Decides for one gateway; told the time."""

    def __init__(self, config: SplitConfig | None = None) -> None:
        self.config = config or SplitConfig()
        self._reported_at = -math.inf

    def wants(self, decode: ReplicaState, request: RouteRequest) -> bool:
        """Whether a request of one sequence is prefilled elsewhere: enough tokens are missing where it decodes."""
        if decode.role != "decode":
            return False
        missing = request.prompt_tokens - request.hits.get(decode.name, 0) * decode.trust
        return missing >= self.config.threshold_tokens

    @staticmethod
    def quiet_until(handed: bool, now: float) -> float:
        """Return until when silence of a decode replica that is sent a leg `now` says nothing of its health."""
        return now + FETCH_SECONDS if handed else now

    def prefill_request(self, request: RouteRequest) -> RouteRequest:
        """Return the routing request of the prefill leg."""
        return replace(request, role="prefill", excluded=frozenset(), hits={}, max_tokens=1)

    def after_failure(self, outcome: Outcome, attempts: int) -> NextStep:
        """Return what follows when the prefill leg number `attempts` (from 1) ended with `outcome`."""
        if outcome is Outcome.CLIENT_ERROR:
            return "fail"
        retry = MEANINGS[outcome].retry or outcome is Outcome.DEADLINE
        return "retry" if retry and attempts < self.config.attempts else "whole"

    def report_queue(
        self, prefill: ReplicaState, states: Sequence[ReplicaState], now: float
    ) -> PrefillQueue | None:
        """Return the queue at a prefill replica if it is long and none was reported lately."""
        if prefill.inflight < _QUEUE_WARNING or now - self._reported_at < _QUEUE_WARNING_SECONDS:
            return None
        self._reported_at = now
        decoding = sum(state.decoding for state in states if state.role == "decode")
        return PrefillQueue(prefill.inflight, prefill.pending_tokens / prefill.prefill_rate, decoding)


def queued_prefills(states: Sequence[ReplicaState]) -> int:
    """Return how many prompts wait behind another one at a prefill replica."""
    return sum(max(0, state.inflight - 1) for state in states if state.role == "prefill")
