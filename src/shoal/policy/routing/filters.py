"""Who can serve a request at all; and if nobody, why."""

from collections.abc import Sequence

from shoal.policy.routing.contracts import NoReplica, ReplicaState, RouteRequest


def serves(request: RouteRequest, replica: ReplicaState) -> bool:
    """Whether a replica has the right model, weights, role and pool, whatever state it is in."""
    return (
        request.model in replica.models
        and (request.pool is None or replica.pool == request.pool)
        and (request.weights is None or replica.weights == request.weights)
        and (replica.role == "prefill") == (request.role == "prefill")
    )


class Serves:
    """The right model, role and pool, and not tried already."""

    waits = False

    def keep(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> list[ReplicaState]:
        model, prefills = request.model, request.role == "prefill"
        kept = [r for r in replicas if model in r.models and (r.role == "prefill") is prefills]
        if request.excluded:
            kept = [r for r in kept if r.name not in request.excluded]
        if request.pool is not None or request.weights is not None:
            kept = [r for r in kept if serves(request, r)]
        return kept


class Available:
    """Healthy, not draining, breaker closed, not ejected."""

    waits = False

    def keep(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> list[ReplicaState]:
        return [r for r in replicas if r.healthy and r.breaker_closed and not r.draining and not r.ejected]


def preferred(replicas: list[ReplicaState]) -> list[ReplicaState]:
    """Return those of the lowest fallback number. A preferred replica that is busy is waited for."""
    numbers = {replica.fallback for replica in replicas}
    if len(numbers) <= 1:
        return replicas
    lowest = min(numbers)
    return [replica for replica in replicas if replica.fallback == lowest]


class HasSlot:
    """Below its limit of requests in flight: an engine given everything at once runs out of memory."""

    waits = True

    def keep(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> list[ReplicaState]:
        return [r for r in replicas if r.inflight < r.max_inflight]


def why_none(request: RouteRequest, replicas: Sequence[ReplicaState]) -> NoReplica:
    """The first reason that holds for everybody."""
    serving = [r for r in replicas if serves(request, r)]
    if not serving:
        return NoReplica("model", f"no replica serves model {request.model[:200]!r}")
    if not (untried := [r for r in serving if r.name not in request.excluded]):
        return NoReplica("down", f"every replica of this model failed this request ({len(serving)})")
    if any(r.available for r in untried):
        return NoReplica(
            "busy", f"every replica of this model has its limit of requests in flight ({len(untried)})"
        )
    down = sum(not r.healthy for r in untried)
    draining = sum(r.draining for r in untried)
    opened = sum(not r.breaker_closed for r in untried)
    return NoReplica(
        "down",
        f"no replica of this model is available (of {len(untried)}: {down} unhealthy, {draining} draining,"
        f" {opened} with an open breaker)",
    )
