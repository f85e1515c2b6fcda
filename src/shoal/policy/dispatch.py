"""From a request to a lease: routed now, or waiting in the admission queue until a replica has a slot.

place ──► Placed                               a decision and its lease
      ├─► Queued ── pump ──► Placed            when something comes free; whoever is next by admission's order
      │          └─ `seconds` are over ──► `late`
      ├─► Refusal                              the queue is full
      └─► NoReplica                            nobody can take it, and waiting is of no use
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shoal.policy.admission import Admission, Refusal
from shoal.policy.leases import Lease
from shoal.policy.replicas import Account, ReplicaAccounts
from shoal.policy.routing.contracts import Decision, NoReplica, RouteRequest
from shoal.policy.routing.router import Router

LOOK_SECONDS = 0.25
"""Between two calls of `pump` while requests wait: a breaker half-opens by time alone, and nobody tells."""
_PUMP_WIDTH = 16
"""Clients whose next request is looked at when something comes free."""


class Placed(msgspec.Struct, frozen=True):
    """Where a request goes."""

    decision: Decision
    lease: Lease


@dataclass(frozen=True, slots=True)
class Queued:
    """A request waits."""

    seconds: float
    """Until `leave` and `late`."""
    because: NoReplica | None
    """Why it got no replica at once; None: others wait for the same."""

    @property
    def late(self) -> NoReplica:
        """What it is told if no slot came free in time."""
        return self.because or NoReplica("busy", f"no slot came free in {self.seconds:g} s")


class Dispatch:
    """For one gateway; told the time. Every `Placed` holds a lease that the caller has to release."""

    def __init__(self, replicas: ReplicaAccounts[Account], router: Router, admission: Admission) -> None:
        self._replicas = replicas
        self._router = router
        self._admission = admission
        self.on_chosen: Callable[[RouteRequest, str], None] | None = None
        """Told of every decision; for gateways that share them."""
        self._streams: dict[RouteRequest, bool] = {}
        """Requests that wait, and whether they stream."""

    def refusal(self, request: RouteRequest, now: float) -> Refusal | None:
        """Refuse a request whose tokens would come too late; None: it may come in."""
        return self._admission.refusal(request, self._router, self._replicas, now)

    def place(self, request: RouteRequest, *, streams: bool, now: float) -> Placed | Queued | Refusal | NoReplica:
        """Route a request, or let it wait. After `Queued`, call `pump` at once and then as `LOOK_SECONDS` says."""
        answer = None if self._admission.has_queue(request.model) else self._try(request, streams, now)
        if isinstance(answer, Placed):
            self._admission.admit(request)
            return answer
        seconds = self._admission.patience(request, answer)
        if answer is not None and not seconds:
            return answer
        refusal = self._admission.enqueue(request, now, self._replicas.drain_rate())
        if refusal is not None:
            return refusal
        self._streams[request] = streams
        return Queued(seconds, answer)

    def pump(self, now: float) -> list[tuple[RouteRequest, Placed]]:
        """Serve whoever waits and can be served."""
        served: list[tuple[RouteRequest, Placed]] = []
        progress = bool(self._streams)
        while progress:
            progress = False
            for request in self._admission.order(now, _PUMP_WIDTH):
                answer = self._try(request, self._streams[request], now)
                if isinstance(answer, NoReplica):
                    continue
                self._admission.admit(request)
                del self._streams[request]
                served.append((request, answer))
                progress = True
        return served

    def leave(self, request: RouteRequest) -> None:
        """It waits no longer; nothing happens if it doesn't."""
        if self._streams.pop(request, None) is not None:
            self._admission.leave(request)

    @property
    def waiting(self) -> int:
        return len(self._streams)

    def _try(self, request: RouteRequest, streams: bool, now: float) -> Placed | NoReplica:
        decision = self._router.route(request, self._replicas.states(now), now)
        if isinstance(decision, NoReplica):
            return decision
        if self.on_chosen is not None:
            self.on_chosen(request, decision.replica)
        return Placed(decision, self._replicas.take(decision, request, streams=streams, now=now))
