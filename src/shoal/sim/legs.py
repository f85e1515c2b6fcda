"""What a simulated gateway knows of a replica, and of a request on it."""

from dataclasses import dataclass

from shoal.policy.account import ReplicaAccount
from shoal.policy.batching.request import SequenceState
from shoal.policy.breaker import BreakerConfig
from shoal.policy.dispatch import Placed
from shoal.policy.rates import Peers
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import ReplicaState
from shoal.sim.asks import Ask
from shoal.sim.events import nanoseconds
from shoal.sim.fleet import ReplicaSpec
from shoal.sim.replica import SimulatedReplica


@dataclass(slots=True, eq=False)
class Leg:
    """One request on one replica."""

    number: int
    ask: Ask
    route: RouteRequest
    placed: Placed
    account: "SimulatedAccount"
    given: int
    """Output tokens that it began with."""
    began: int
    over: bool = False


class SimulatedAccount(ReplicaAccount):
    """An account with the replica that it is of."""

    def __init__(self, spec: ReplicaSpec, replica: SimulatedReplica, breaker: BreakerConfig, peers: Peers) -> None:
        state = ReplicaState(
            name=spec.name,
            models=spec.models,
            pool=spec.pool,
            weights=spec.pool,
            role=spec.role,
            max_inflight=spec.max_inflight,
            max_model_len=spec.scheduler.max_model_len,
        )
        super().__init__(state, breaker, peers, 0.0)
        self.spec = spec
        self.replica = replica
        self.front, self.back = nanoseconds(spec.front), nanoseconds(spec.back)
        self.cut_off = False
        """The gateway can't reach it: bytes wait in both directions."""
        self.held: list[tuple[Leg, SequenceState]] = []
        """Legs that ended while it was cut off."""
        self.fails_to_load = 0
        """How many more times it can't be started."""
