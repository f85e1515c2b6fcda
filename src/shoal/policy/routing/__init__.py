"""Which replica serves a request: filters, scorers in seconds, pickers."""

from shoal.policy.routing.contracts import Decision, NoReplica, ReplicaState, RouteRequest
from shoal.policy.routing.router import POLICIES, Router, RouterConfig, build_router

__all__ = [
    "POLICIES",
    "Decision",
    "NoReplica",
    "ReplicaState",
    "RouteRequest",
    "Router",
    "RouterConfig",
    "build_router",
]
