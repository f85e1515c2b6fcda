"""Active health: regular checks, gauges, hangs, stragglers.

| found                                             | done                                               |
|---------------------------------------------------|----------------------------------------------------|
| several checks in a row fail                      | unhealthy: no new legs, live ones end and move on  |
| streams are open and nothing comes, for too long  | breaker opens, live legs end and move on           |
| its latency leaves the fleet's                    | set aside for a while; never more than a share     |
| counters went backwards                           | another process: its prefixes are forgotten        |
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from shoal.fleet.registry import Registry, Replica
from shoal.policy.outcomes import LegFailed, Outcome

log = logging.getLogger("shoal.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    check_seconds: float = 1.0
    """Between two checks of a replica."""
    check_timeout: float = 3.0
    failures: int = 3
    """Failed checks in a row that make it unhealthy."""
    successes: int = 1
    """Good checks in a row that make it healthy again."""
    hang_seconds: float = 30.0
    """Streams open, nothing comes for so long (beyond the predicted time to a first token): it hangs."""
    straggler_ratio: float = 4.0
    """Times the fleet's median latency at which a replica is set aside…"""
    straggler_return: float = 2.0
    """…and below which it counts as recovered."""
    straggler_seconds: float = 15.0
    """How long it is set aside at a time."""
    straggler_share: float = 0.34
    """Share of a model's replicas that may be set aside at a time."""
    straggler_legs: int = 10
    """Legs that a replica must have carried before it is judged."""


class HealthMonitor:
    """Watches the replicas of one registry."""

    def __init__(self, registry: Registry, config: HealthConfig | None = None) -> None:
        self._registry = registry
        self._config = config or HealthConfig()
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._sweep: asyncio.Task[None] | None = None
        self._bad: dict[str, int] = {}
        self._good: dict[str, int] = {}
        self._ejected_until: dict[str, float] = {}
        self._leave: Callable[[], None] | None = None

    def start(self) -> None:
        self._sweep = asyncio.ensure_future(self._sweeping())
        self._leave = self._registry.on_change(lambda name: self._sync())
        self._sync()

    async def stop(self) -> None:
        tasks = [*self._loops.values(), *([self._sweep] if self._sweep else [])]
        self._sweep = None
        self._loops.clear()
        if self._leave is not None:
            self._leave()
            self._leave = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sync(self) -> None:
        if self._sweep is None:
            return
        present = {replica.name: replica for replica in self._registry.replicas}
        for name in [n for n in self._loops if n not in present]:
            self._loops.pop(name).cancel()
            for memory in (self._bad, self._good, self._ejected_until):
                memory.pop(name, None)
        for name, replica in present.items():
            if name not in self._loops and replica.handle.adapter is not None:
                self._loops[name] = asyncio.ensure_future(self._watch(replica))

    async def _watch(self, replica: Replica) -> None:
        while True:
            await self.check(replica)
            await asyncio.sleep(self._config.check_seconds)

    async def check(self, replica: Replica) -> bool:
        """One active check, and the gauges. Whether it was good."""
        adapter = replica.handle.adapter
        assert adapter is not None
        problem = "it says that it isn't ready"
        good = False
        try:
            async with asyncio.timeout(self._config.check_timeout):
                good = await adapter.ready()
        except TimeoutError:
            problem = f"no answer to a check within {self._config.check_timeout:g} s"
        except Exception as error:
            problem = str(error) or type(error).__name__
        if replica.name not in self._registry:
            return good
        if good:
            await self._gauges(replica)
        self._judge(replica, good, problem)
        return good

    async def _gauges(self, replica: Replica) -> None:
        adapter = replica.handle.adapter
        assert adapter is not None
        # A replica whose gauges can't be read serves all the same.
        with contextlib.suppress(TimeoutError, LegFailed, OSError, ValueError):
            async with asyncio.timeout(self._config.check_timeout):
                own = replica.state.inflight
                if replica.on_stats(await adapter.stats(), self._registry.clock(), own):
                    log.info("replica %s restarted: its prefixes are forgotten", replica.name)
                    self._registry.emptied(replica.name)

    def _judge(self, replica: Replica, good: bool, problem: str) -> None:
        name, config = replica.name, self._config
        if name not in self._registry:
            return
        self._good[name] = self._good.get(name, 0) + 1 if good else 0
        self._bad[name] = 0 if good else self._bad.get(name, 0) + 1
        if not good and self._bad[name] >= config.failures and replica.state.healthy:
            log.warning("replica %s is unhealthy: %s", name, problem)
            self._registry.set_health(name, False, problem)
        elif good and self._good[name] >= config.successes and not replica.state.healthy:
            log.info("replica %s is healthy", name)
            self._registry.set_health(name, True)

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(self._config.check_seconds)
            now = self._registry.clock()
            for replica in self._registry.replicas:
                if self.hangs(replica, now):
                    self._end_hang(replica, now)
            self.judge_stragglers(now)

    def hangs(self, replica: Replica, now: float) -> bool:
        """Streams are open there, and nothing came from it since long before one of them should have begun."""
        streams = [lease for lease in self._registry.ledger.leases(replica.name) if lease.streams]
        if not streams:
            return False
        limit = self._config.hang_seconds
        oldest = streams[0]
        expected = (oldest.ahead + oldest.uncached) / replica.rates.prefill_rate if oldest.first_at is None else 0.0
        return now - max(replica.last_progress, oldest.taken_at) > limit + expected

    def _end_hang(self, replica: Replica, now: float) -> None:
        replica.breaker.trip(now)
        replica.refresh(now)
        error = LegFailed(
            Outcome.REPLICA_FAULT, f"replica {replica.name} produced nothing for {self._config.hang_seconds:g} s"
        )
        ended = self._registry.end_legs(replica.name, error)
        replica.last_progress = now
        log.warning("replica %s hangs: %d legs ended", replica.name, ended)

    def judge_stragglers(self, now: float) -> None:
        """Set aside replicas far slower than their peers, and take back those that had their time."""
        config = self._config
        pools: dict[tuple[str, str], list[Replica]] = {}
        for replica in self._registry.replicas:
            pools.setdefault((replica.handle.pool, replica.handle.models[0]), []).append(replica)
        for peers in pools.values():
            for replica in peers:
                until = self._ejected_until.get(replica.name)
                if until is not None and now >= until:
                    self._return(replica)
            judged = [r for r in peers if sum(r.outcomes.values()) >= config.straggler_legs and r.rates.tpot > 0]
            if len(judged) < 3:
                # Of two, nobody can say which is the slow one.
                continue
            usual = median(r.rates.tpot for r in judged)
            allowed = int(config.straggler_share * len(peers)) - sum(r.state.ejected for r in peers)
            for replica in sorted(judged, key=lambda r: -r.rates.tpot):
                ratio = replica.rates.tpot / usual if usual > 0 else 1.0
                bound = config.straggler_return if replica.name in self._ejected_until else config.straggler_ratio
                if ratio <= bound:
                    self._ejected_until.pop(replica.name, None)
                elif allowed > 0 and not replica.state.ejected:
                    allowed -= 1
                    self._eject(replica, now, ratio)

    def _eject(self, replica: Replica, now: float, ratio: float) -> None:
        log.warning("replica %s is %.1f times slower than its peers: set aside", replica.name, ratio)
        replica.state.ejected = True
        self._ejected_until[replica.name] = now + self._config.straggler_seconds

    def _return(self, replica: Replica) -> None:
        if not replica.state.ejected:
            return
        replica.state.ejected = False
        # It is judged by what it does from now on, by the stricter bound.
        replica.rates.tpot = 0.0
        self._registry.changed(replica.name)
