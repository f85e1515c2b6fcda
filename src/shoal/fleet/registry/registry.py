"""Every replica behind this gateway."""

import time
from collections.abc import Callable

from shoal.fleet.registry.contracts import ReplicaHandle
from shoal.fleet.registry.replica import Replica
from shoal.policy.breaker import BreakerConfig
from shoal.policy.outcomes import LegFailed, Outcome
from shoal.policy.replicas import ReplicaAccounts


class Registry(ReplicaAccounts[Replica]):
    """Accounts with a clock and endpoints. Owned by one event loop.

    `on_change` is called when a replica comes, goes, or may take requests again.
    """

    def __init__(self, breaker: BreakerConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(breaker)
        self.clock = clock
        self._listeners: list[Callable[[str], None]] = []
        self._forgetters: list[Callable[[str], None]] = []

    def add(self, handle: ReplicaHandle, *, healthy: bool = True) -> Replica:
        """Add a replica. `healthy=False`: it gets nothing before its first check says that it is ready."""
        replica = Replica(handle, self._breaker, self.peers(handle.pool, handle.models[0]), self.clock())
        self.insert(replica)
        replica.state.healthy = healthy
        if not healthy:
            replica.unhealthy_because = "not checked yet"
        self.changed(handle.name)
        return replica

    def remove(self, name: str) -> None:
        """Remove a replica: its legs end as transport faults, to be tried elsewhere."""
        replica = self.discard(name)
        self.end_legs(name, LegFailed(Outcome.TRANSPORT_FAULT, f"replica {name} was removed"))
        replica.endpoint.close()
        self.emptied(name)
        self.changed(name)

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

    def models(self) -> list[str]:
        """Every model that some replica serves, sorted."""
        return sorted({model for replica in self._replicas.values() for model in replica.handle.models})

    def base_of(self, model: str) -> str | None:
        """The model that a LoRA adapter belongs to; None: it is none."""
        for replica in self._replicas.values():
            if model in replica.handle.adapters:
                return replica.handle.models[0]
        return None

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with a replica's name from now on; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_emptied(self, forget: Callable[[str], None]) -> Callable[[], None]:
        """Call `forget` when a replica's cache is gone; what is returned ends that."""
        self._forgetters.append(forget)
        return lambda: self._forgetters.remove(forget)

    def changed(self, name: str) -> None:
        for listener in tuple(self._listeners):
            listener(name)

    def close(self) -> None:
        for replica in self._replicas.values():
            replica.endpoint.close()
