"""One replica of the gateway: how it is reached, beside its account."""

from shoal.fleet.registry.contracts import ReplicaHandle
from shoal.http.client import Endpoint
from shoal.policy.account import ReplicaAccount
from shoal.policy.breaker import BreakerConfig
from shoal.policy.rates import Peers
from shoal.policy.routing.contracts import ReplicaState


class Replica(ReplicaAccount):
    """An account with the endpoint of its replica."""

    def __init__(self, handle: ReplicaHandle, breaker: BreakerConfig, peers: Peers, now: float) -> None:
        state = ReplicaState(
            name=handle.name,
            models=frozenset(handle.models),
            pool=handle.pool,
            weights=handle.weights,
            role=handle.role,
            max_inflight=handle.max_inflight,
            max_model_len=handle.max_model_len,
            fallback=handle.fallback,
        )
        super().__init__(state, breaker, peers, now)
        self.handle = handle
        self.endpoint = Endpoint(handle.url, api_key=handle.api_key)
        self.unhealthy_because = ""
