"""Judgement of replicas' health from checks, progress and latency. The caller checks, waits and ends legs.

| observed                                          | judged                                             |
|---------------------------------------------------|----------------------------------------------------|
| several checks in a row fail                      | unhealthy                                          |
| streams are open without output for too long      | it hangs: its breaker opens                        |
| its time per output token is far above its pool's | ejected for a while; never more than a share       |
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from shoal.policy.account import ReplicaAccount
from shoal.policy.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """When a replica counts as unhealthy, hanging or a straggler. Times in seconds."""

    check_seconds: float = 1.0
    """Between two checks of a replica."""
    check_timeout: float = 3.0
    failures: int = 3
    """Failed checks in a row that make it unhealthy."""
    successes: int = 1
    """Good checks in a row that make it healthy again."""
    hang_seconds: float = 30.0
    """With open streams and no output for so long, beyond the predicted time to a first token, a replica hangs."""
    straggler_ratio: float = 4.0
    """Times its pool's median time per output token, above which a replica is ejected…"""
    straggler_return: float = 2.0
    """…and below which it counts as recovered."""
    straggler_seconds: float = 15.0
    """How long it is ejected at a time."""
    straggler_share: float = 0.34
    """Share of a pool's replicas that may be ejected at a time."""
    straggler_legs: int = 10
    """Legs that a replica must have carried before it is judged."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """What one judgement changed."""

    ejected: list[tuple[str, float]] = field(default_factory=list)
    """Replicas, and how many times slower than their pool's median they are."""
    returned: list[str] = field(default_factory=list)
    """Replicas that may take requests again."""


class HealthJudge:
    """Counts checks and ejections of the replicas of one gateway."""

    def __init__(self, config: HealthConfig | None = None) -> None:
        self.config = config or HealthConfig()
        self._failed: dict[str, int] = {}
        self._passed: dict[str, int] = {}
        self._ejected_until: dict[str, float] = {}

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica that was removed."""
        for memory in (self._failed, self._passed, self._ejected_until):
            memory.pop(replica, None)

    def on_check(self, replica: ReplicaAccount, passed: bool) -> bool | None:
        """Count a check. Whether the replica is healthy from now on; None: as before."""
        name, config = replica.name, self.config
        self._passed[name] = self._passed.get(name, 0) + 1 if passed else 0
        self._failed[name] = 0 if passed else self._failed.get(name, 0) + 1
        if not passed and self._failed[name] >= config.failures and replica.state.healthy:
            return False
        if passed and self._passed[name] >= config.successes and not replica.state.healthy:
            return True
        return None

    def hangs(self, replica: ReplicaAccount, leases: Sequence[Lease], now: float) -> bool:
        """Whether streams are open without any output since long before the oldest should have begun.

        `leases`: those on the replica, oldest first.
        """
        oldest = next((lease for lease in leases if lease.streams and lease.quiet_until <= now), None)
        if oldest is None:
            return False
        expected = (oldest.ahead + oldest.uncached) / replica.rates.prefill_rate if oldest.first_at is None else 0.0
        return now - max(replica.last_progress, oldest.quiet_until) > self.config.hang_seconds + expected

    def on_hang(self, replica: ReplicaAccount, now: float) -> None:
        """Open the breaker of a replica that hangs. It counts as having made progress, so as to be found once."""
        replica.breaker.trip(now)
        replica.refresh(now)
        replica.last_progress = now

    def judge_stragglers(self, replicas: Iterable[ReplicaAccount], now: float) -> Stragglers:
        """Eject replicas far slower than their pool, and return those whose time is over."""
        changed = Stragglers()
        pools: dict[int, list[ReplicaAccount]] = {}
        for replica in replicas:
            # Replicas of a pool share their rates.
            pools.setdefault(id(replica.rates.peers), []).append(replica)
        for peers in pools.values():
            self._judge_pool(peers, now, changed)
        return changed

    def _judge_pool(self, peers: list[ReplicaAccount], now: float, changed: Stragglers) -> None:
        config = self.config
        for replica in peers:
            until = self._ejected_until.get(replica.name)
            if until is not None and now >= until and replica.state.ejected:
                replica.state.ejected = False
                # It is judged by what it does from now on, by the stricter bound.
                replica.rates.tpot = 0.0
                changed.returned.append(replica.name)
        judged = [r for r in peers if sum(r.outcomes.values()) >= config.straggler_legs and r.rates.tpot > 0]
        if len(judged) < 3:
            # Of two, nobody can say which is the slow one.
            return
        usual = median(r.rates.tpot for r in judged)
        allowed = int(config.straggler_share * len(peers)) - sum(r.state.ejected for r in peers)
        for replica in sorted(judged, key=lambda r: -r.rates.tpot):
            ratio = replica.rates.tpot / usual if usual > 0 else 1.0
            bound = config.straggler_return if replica.name in self._ejected_until else config.straggler_ratio
            if replica.state.ejected:
                # Legs that were there before may end well meanwhile: its time passes all the same.
                continue
            if ratio <= bound:
                self._ejected_until.pop(replica.name, None)
            elif allowed > 0:
                allowed -= 1
                replica.state.ejected = True
                self._ejected_until[replica.name] = now + config.straggler_seconds
                changed.ejected.append((replica.name, ratio))
