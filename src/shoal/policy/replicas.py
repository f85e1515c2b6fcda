"""The accounts of all replicas behind one gateway: what routing, admission and retries ask of them together."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from shoal.policy.account import ReplicaAccount
from shoal.policy.breaker import BreakerConfig
from shoal.policy.leases import Lease, Ledger
from shoal.policy.rates import Peers
from shoal.policy.routing.contracts import Decision, ReplicaState, RouteRequest

Account = TypeVar("Account", bound=ReplicaAccount)


class ReplicaAccounts(Generic[Account]):
    """Accounts by replica name, with the ledger of leases on them. Told the time; owned by one thread."""

    def __init__(self, breaker: BreakerConfig | None = None) -> None:
        self.ledger = Ledger()
        self._breaker = breaker or BreakerConfig()
        self._replicas: dict[str, Account] = {}
        self._states: list[ReplicaState] = []
        self._peers: dict[tuple[str, str], Peers] = {}
        self._versions: dict[tuple[str, str], int] = {}
        """Of the pools' rates, as all states show them."""
        self._unsettled: dict[str, ReplicaAccount] = {}

    def peers(self, pool: str, model: str) -> Peers:
        """Return the rates that replicas of one pool and model share."""
        return self._peers.setdefault((pool, model), Peers())

    def insert(self, account: Account) -> None:
        """Include an account; `ValueError` if its name is taken."""
        if account.name in self._replicas:
            raise ValueError(f"replica {account.name!r} exists already; names must differ")
        self._replicas[account.name] = account
        self._states.append(account.state)
        account.unsettled = self._unsettled
        self._unsettled[account.name] = account

    def discard(self, name: str) -> Account:
        """Take out an account, and return it. Leases on it stay in the ledger until they are released."""
        account = self._replicas.pop(name)
        self._states.remove(account.state)
        account.unsettled = {}
        self._unsettled.pop(name, None)
        return account

    def set_breaker(self, config: BreakerConfig) -> None:
        """Judge every replica by these bounds from now on; what was recorded stays."""
        self._breaker = config
        for replica in self._replicas.values():
            replica.breaker.configure(config)

    def take(self, decision: Decision, request: RouteRequest, *, streams: bool, now: float) -> Lease:
        """Return the lease of a decision; call it at the moment of the decision."""
        replica = self._replicas[decision.replica]
        hit = decision.predicted_hit * replica.state.trust
        return Lease(
            self.ledger,
            replica,
            request.id,
            uncached=max(1.0, request.prompt_tokens - hit),
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.max_tokens,
            streams=streams,
            now=now,
        )

    def states(self, now: float) -> list[ReplicaState]:
        """Return the states of all replicas for the router, up to date at `now`."""
        for pool, peers in self._peers.items():
            if self._versions.get(pool) != peers.version:
                self._versions[pool] = peers.version
                self._unsettled.update(self._replicas)
        if self._unsettled:
            for replica in list(self._unsettled.values()):
                replica.settle(now)
                if replica.is_settled:
                    self._unsettled.pop(replica.name, None)
        return self._states

    @property
    def last_states(self) -> Sequence[ReplicaState]:
        """The states of all replicas as of the last call of `states`; load and rates may have changed since."""
        return self._states

    def get(self, name: str) -> Account:
        return self._replicas[name]

    def __contains__(self, name: object) -> bool:
        return name in self._replicas

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def replicas(self) -> list[Account]:
        return list(self._replicas.values())

    def serves(self, model: str) -> bool:
        """Whether some replica serves it, in whatever state."""
        return any(model in state.models for state in self._states)

    def _available(self, model: str) -> list[Account]:
        return [
            replica
            for replica in self._replicas.values()
            if model in replica.state.models and replica.state.available and replica.state.role != "prefill"
        ]

    def idle(self, model: str) -> bool:
        """Whether some available replica of it has nothing to do."""
        return any(replica.state.load == 0 for replica in self._available(model))

    def predicted_tpot(self, model: str) -> float | None:
        """Seconds per output token of one more request, where that is shortest; None: no replica is available."""
        return min((r.rates.tpot_with(r.state.load + 1) for r in self._available(model)), default=None)

    def drain_rate(self) -> float:
        """Prompt tokens per second that the available replicas compute together."""
        return sum(s.prefill_rate for s in self._states if s.serving and s.breaker_closed)

    def seconds_to_probe(self, now: float) -> float:
        """Seconds until the first breaker lets a leg through; 0 if one does now, or there is no replica."""
        return min((r.breaker.seconds_to_probe(now) for r in self._replicas.values()), default=0.0)
