"""Who can serve a request at all; and if nobody, why."""

from collections.abc import Sequence

from shoal.policy.routing.contracts import NoReplica, ReplicaState, RouteRequest


class Serves:
    """The right model, role and pool, and not tried already."""

    def keep(self, request: RouteRequest, replica: ReplicaState, now: float) -> bool:
        return (
            request.model in replica.models
            and replica.name not in request.excluded
            and (request.pool is None or replica.pool == request.pool)
            and (replica.role == "prefill") == (request.role == "prefill")
        )


class Available:
    """Those that may be asked at all."""

    def keep(self, request: RouteRequest, replica: ReplicaState, now: float) -> bool:
        return replica.available


class HasSlot:
    """Below its limit of requests in flight: an engine given everything at once runs out of memory."""

    def keep(self, request: RouteRequest, replica: ReplicaState, now: float) -> bool:
        return replica.inflight < replica.max_inflight


def why_none(request: RouteRequest, replicas: Sequence[ReplicaState]) -> NoReplica:
    """The first reason that holds for everybody."""
    pool, prefill = request.pool, request.role == "prefill"
    serving = [
        r
        for r in replicas
        if request.model in r.models and (pool is None or r.pool == pool) and (r.role == "prefill") == prefill
    ]
    if not serving:
        return NoReplica("model", f"no replica serves model {request.model[:200]!r}")
    if not (untried := [r for r in serving if r.name not in request.excluded]):
        return NoReplica("down", f"all {len(serving)} replicas of this model failed this request")
    if any(r.available for r in untried):
        return NoReplica("busy", f"all replicas have their limit of requests in flight ({len(untried)} replicas)")
    down = sum(not r.healthy for r in untried)
    draining = sum(r.draining for r in untried)
    opened = sum(not r.breaker_closed for r in untried)
    return NoReplica(
        "down",
        f"no replica of this model is available: of {len(untried)} {down} are unhealthy, {draining} draining,"
        f" {opened} have an open breaker",
    )
