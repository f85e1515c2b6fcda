"""Active health: the timers and sockets of checks and gauges, and what follows from `policy.health`'s judgement.

| judged                | done                                               |
|-----------------------|----------------------------------------------------|
| unhealthy             | no new legs, live ones end and move on             |
| it hangs              | live legs end and move on                          |
| counters went back    | another process: its prefixes are forgotten        |
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from shoal.fleet.registry import Registry, Replica
from shoal.policy.health import HealthConfig, HealthJudge
from shoal.policy.outcomes import LegFailed, Outcome

log = logging.getLogger("shoal.fleet")


class HealthMonitor:
    """Watches the replicas of one registry."""

    def __init__(self, registry: Registry, config: HealthConfig | None = None) -> None:
        self._registry = registry
        self._judge = HealthJudge(config)
        self._config = self._judge.config
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._sweep: asyncio.Task[None] | None = None
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
            self._judge.forget(name)
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
        self._apply(replica, good, problem)
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

    def _apply(self, replica: Replica, good: bool, problem: str) -> None:
        name = replica.name
        if name not in self._registry:
            return
        healthy = self._judge.on_check(replica, good)
        if healthy is False:
            log.warning("replica %s is unhealthy: %s", name, problem)
            self._registry.set_health(name, False, problem)
        elif healthy:
            log.info("replica %s is healthy", name)
            self._registry.set_health(name, True)

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(self._config.check_seconds)
            now = self._registry.clock()
            for replica in self._registry.replicas:
                if self._judge.hangs(replica, self._registry.ledger.leases(replica.name), now):
                    self._end_hang(replica, now)
            self._judge_stragglers(now)

    def _end_hang(self, replica: Replica, now: float) -> None:
        self._judge.on_hang(replica, now)
        error = LegFailed(
            Outcome.REPLICA_FAULT, f"replica {replica.name} produced nothing for {self._config.hang_seconds:g} s"
        )
        ended = self._registry.end_legs(replica.name, error)
        log.warning("replica %s hangs: %d legs ended", replica.name, ended)

    def _judge_stragglers(self, now: float) -> None:
        changed = self._judge.judge_stragglers(self._registry.replicas, now)
        for name, ratio in changed.ejected:
            log.warning("replica %s is %.1f times slower than its peers: ejected for a while", name, ratio)
        for name in changed.returned:
            self._registry.changed(name)
