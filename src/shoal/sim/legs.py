"""What a simulated gateway knows of a replica, and of a request on it."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.policy.account import ReplicaAccount
from shoal.policy.batching import CountedScheduler, HeldPrefix
from shoal.policy.batching.request import SequenceState
from shoal.policy.breaker import BreakerConfig
from shoal.policy.dispatch import Placed
from shoal.policy.outcomes import Outcome
from shoal.policy.rates import Peers
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import ReplicaState
from shoal.sim.asks import Ask
from shoal.sim.events import nanoseconds
from shoal.sim.fleet import ReplicaSpec
from shoal.sim.network import Transfer
from shoal.sim.replica import SimulatedReplica


@dataclass(slots=True, eq=False)
class Offer:
    """Blocks that a prefill replica holds for whoever fetches them."""

    account: "SimulatedAccount"
    scheduler: CountedScheduler
    """The process that holds them."""
    held: HeldPrefix
    cached: int
    """Prompt tokens that it had cached."""
    sending: int = 0
    overdue: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """A replica takes held blocks over."""

    offer: Offer
    taker: "SimulatedAccount"
    hashes: tuple[bytes, ...]
    known: int
    """Leading blocks that it had."""
    then: Callable[[int], None]
    """What follows, with or without them."""
    transfer: Transfer | None = None
    over: bool = False


@dataclass(slots=True, eq=False)
class SplitLeg:
    """What a leg has to do with a prefill elsewhere."""

    hashes: tuple[bytes, ...]
    """Names of the prompt's full blocks, the same at both replicas."""
    prefill: "Leg | None" = None
    """The leg that computes its prompt now."""
    attempts: int = 0
    offer: Offer | None = None
    """What it was handed and hasn't answered with yet."""
    fetch: Fetch | None = None
    cached: int | None = None
    """Prompt tokens that the prefill replica had cached; None: its prompt is its own."""
    killed: tuple[Outcome, str] | None = None
    """What ended it while its prompt was computed: found when it is sent."""


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
    of: "Leg | None" = None
    """The leg whose prompt it computes; None: it is one that answers."""
    split: SplitLeg | None = None
    """None: it was never split."""

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Names of its prompt's full blocks, if they are known."""
        return tuple(self.route.blocks) if self.split is None else self.split.hashes


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
