"""Every replica behind this gateway."""

import time
from collections.abc import Callable

from shoal.fleet.registry.contracts import ReplicaHandle
from shoal.fleet.registry.replica import Replica
from shoal.policy.breaker import BreakerConfig
from shoal.policy.leases import Lease, Ledger
from shoal.policy.outcomes import LegFailed, Outcome
from shoal.policy.rates import Peers
from shoal.policy.routing.contracts import Decision, ReplicaState, RouteRequest


class Registry:
    """Owned by one event loop. `on_change` is called when a replica comes, goes, or may take requests again."""

    def __init__(self, breaker: BreakerConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = Ledger()
        self.clock = clock
        self._breaker = breaker or BreakerConfig()
        self._replicas: dict[str, Replica] = {}
        self._states: list[ReplicaState] = []
        self._peers: dict[tuple[str, str], Peers] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._forgetters: list[Callable[[str], None]] = []

    def add(self, handle: ReplicaHandle, *, healthy: bool = True) -> Replica:
        """A new replica. `healthy=False`: it gets nothing before its first check says that it is ready."""
        if handle.name in self._replicas:
            raise ValueError(f"replica {handle.name!r} exists already; names must differ")
        peers = self._peers.setdefault((handle.pool, handle.models[0]), Peers())
        replica = Replica(handle, self._breaker, self.clock, peers)
        replica.state.healthy = healthy
        if not healthy:
            replica.unhealthy_because = "not checked yet"
        self._replicas[handle.name] = replica
        self._states.append(replica.state)
        self.changed(handle.name)
        return replica

    def remove(self, name: str) -> None:
        """It is gone: its legs end as transport faults (and are tried elsewhere), its memory is dropped."""
        replica = self._replicas.pop(name)
        self._states.remove(replica.state)
        self.end_legs(name, LegFailed(Outcome.TRANSPORT_FAULT, f"replica {name} was removed"))
        replica.endpoint.close()
        self.emptied(name)
        self.changed(name)

    def set_breaker(self, config: BreakerConfig) -> None:
        """Judge every replica by these bounds from now on; what was recorded stays."""
        self._breaker = config
        for replica in self._replicas.values():
            replica.breaker.configure(config)

    def drain(self, name: str) -> None:
        """No new legs; those there go on."""
        self._replicas[name].state.draining = True

    def set_health(self, name: str, healthy: bool, because: str = "") -> None:
        """What an active check (or a supervisor) found.

        Falling ill ends the legs there: nobody waits for the dead.
        """
        replica = self._replicas[name]
        if replica.state.healthy == healthy:
            return
        replica.state.healthy = healthy
        replica.unhealthy_because = "" if healthy else because
        if not healthy:
            self.end_legs(name, LegFailed(Outcome.REPLICA_FAULT, f"replica {name} is unhealthy: {because}"))
        self.changed(name)

    def end_legs(self, name: str, error: LegFailed) -> int:
        """End every leg on a replica with an error; how many."""
        leases = self.ledger.leases(name)
        for lease in leases:
            if lease.kill is not None:
                lease.kill(error)
        return len(leases)

    def emptied(self, name: str) -> None:
        """Its cache is gone (restart, reset, removal): whoever remembers its prefixes must forget them."""
        for forget in tuple(self._forgetters):
            forget(name)

    def take(self, decision: Decision, request: RouteRequest, *, streams: bool, now: float) -> Lease:
        """The lease of a decision, at the moment it is made."""
        replica = self._replicas[decision.replica]
        hit = decision.predicted_hit * replica.state.trust
        return self.ledger.take(
            replica,
            request.id,
            uncached=max(1.0, request.prompt_tokens - hit),
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.max_tokens,
            streams=streams,
            now=now,
        )

    def states(self, now: float) -> list[ReplicaState]:
        """All replicas for the router, breakers read at `now`."""
        for replica in self._replicas.values():
            replica.settle(now)
        return self._states

    def get(self, name: str) -> Replica:
        return self._replicas[name]

    def __contains__(self, name: object) -> bool:
        return name in self._replicas

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    def models(self) -> list[str]:
        """Every model that some replica serves, sorted."""
        return sorted({model for replica in self._replicas.values() for model in replica.handle.models})

    def serves(self, model: str) -> bool:
        """Whether some replica serves it, in whatever state."""
        return any(model in state.models for state in self._states)

    def base_of(self, model: str) -> str | None:
        """The model that a LoRA adapter belongs to; None: it is none."""
        handles = (replica.handle for replica in self._replicas.values())
        return next((handle.models[0] for handle in handles if model in handle.adapters), None)

    def has_other(self, model: str, weights: str | None, excluded: frozenset[str], now: float) -> bool:
        """Whether some healthy replica beyond `excluded` could answer for a model; `weights`: only of these."""
        return any(
            model in state.models
            and (weights is None or state.weights == weights)
            and state.role != "prefill"
            and state.healthy
            and not state.draining
            for state in self.states(now)
            if state.name not in excluded
        )

    def _available(self, model: str) -> list[Replica]:
        return [
            replica
            for replica in self._replicas.values()
            if model in replica.state.models and replica.state.available and replica.state.role != "prefill"
        ]

    def idle(self, model: str) -> bool:
        """Whether some available replica of it has nothing to do."""
        return any(replica.state.load == 0 for replica in self._available(model))

    def predicted_tpot(self, model: str) -> float | None:
        """Seconds an output token would take one more request, where that is shortest; None: nobody is there."""
        return min((r.rates.tpot_with(r.state.load + 1) for r in self._available(model)), default=None)

    def prefill_rate(self) -> float:
        """Prompt tokens a second that the available replicas compute together."""
        return sum(s.prefill_rate for s in self._states if s.healthy and not s.draining and s.breaker_closed)

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with a replica's name from now on; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_emptied(self, forget: Callable[[str], None]) -> Callable[[], None]:
        """Call `forget` when a replica's cache is gone; what is returned ends that."""
        self._forgetters.append(forget)
        return lambda: self._forgetters.remove(forget)

    @property
    def listeners(self) -> int:
        """Who wants to hear of changes, of both kinds."""
        return len(self._listeners) + len(self._forgetters)

    def changed(self, name: str) -> None:
        for listener in tuple(self._listeners):
            listener(name)

    def close(self) -> None:
        for replica in self._replicas.values():
            replica.endpoint.close()
