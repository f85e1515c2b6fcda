"""Wanted replicas and actual ones, brought together.

    wanted (fleet.yaml) ─► apply ─► replicas: start, prove, watch, start again, drain, end ─► registry ─► router

A pool whose options changed is renewed one replica at a time. Of several, it goes first and the others carry on;
the only one of a pool has its successor there before it goes. Requests never see it.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.fleet.adapters import DIALECTS
from shoal.fleet.config import FleetConfig, Pool
from shoal.fleet.context import FleetContext
from shoal.fleet.managed import ManagedReplica, ReplicaPhase
from shoal.fleet.registry import Registry
from shoal.policy.restarts import starts_successor_first

log = logging.getLogger("shoal.fleet")


class FleetError(RuntimeError):
    """The fleet can't serve; the message says why, with the end of the log of what failed."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a change of the wanted state did."""

    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"{what} {', '.join(names)}" for what, names in self._named() if names]
        return "; ".join(parts) or "nothing changed"

    def _named(self) -> Iterable[tuple[str, list[str]]]:
        return (("started", self.started), ("stopped", self.stopped), ("failed", self.failed))


def _started_otherwise(old: FleetConfig, new: FleetConfig) -> bool:
    """Whether what all replicas are told at their start has changed."""
    return old.tracing != new.tracing or bool(old.keys) != bool(new.keys)


def _log_directory(configured: str | None) -> Path:
    """`configured`, else `$SHOAL_HOME`, `$XDG_STATE_HOME/shoal` or `~/.local/state/shoal`, with `fleet/logs/PID`.

    By process, so that two fleets on one machine don't write into each other's files.
    """
    if configured is not None:
        return Path(configured).expanduser()
    if home := os.environ.get("SHOAL_HOME"):
        base = Path(home)
    elif state := os.environ.get("XDG_STATE_HOME"):
        base = Path(state) / "shoal"
    else:
        base = Path.home() / ".local" / "state" / "shoal"
    return base / "fleet" / "logs" / str(os.getpid())


class Supervisor:
    """Owns every replica of one fleet. Everything runs in the event loop that made it."""

    def __init__(
        self,
        registry: Registry,
        config: FleetConfig,
        *,
        cores: int,
    ) -> None:
        self._registry = registry
        self._config = config
        self._cores = cores
        # Only the gateway may talk to the replicas: where clients need keys, the way around it is closed as well.
        self._secret = secrets.token_urlsafe(32)
        # One for the fleet's whole life: replicas started later hand KV to those started before.
        self._kv_key = secrets.token_hex(32)
        self._replicas: dict[str, ManagedReplica] = {}
        self._changing = asyncio.Lock()
        self._closed = False

    @property
    def replicas(self) -> list[ManagedReplica]:
        return list(self._replicas.values())

    def start(self) -> None:
        """Begin to start every wanted replica; `settled` waits for them."""
        for pool in self._config.pools:
            for _ in range(pool.count):
                self._add(pool)

    def _context(self) -> FleetContext:
        config = self._config
        ranks = max(1, config.local_ranks)
        return FleetContext(
            registry=self._registry,
            settings=config.supervisor,
            log_dir=_log_directory(config.supervisor.log_dir),
            threads=max(1, self._cores // ranks),
            # The engine alone would take a quarter of what is free; together they take half.
            kv_share=0.5 / config.local_replicas if config.local_replicas > 1 else None,
            secret=self._secret if config.keys else None,
            kv_key=self._kv_key,
            tracing=config.tracing,
        )

    def _add(self, pool: Pool) -> ManagedReplica:
        taken = {replica.place for replica in self._replicas.values() if replica.pool.name == pool.name}
        attached = {replica.url for replica in self._replicas.values() if replica.pool.name == pool.name}
        if pool.urls:
            url = next((u for u in pool.urls if u.rstrip("/") not in attached), pool.urls[0])
            place = pool.urls.index(url)
            while place in taken:
                place += len(pool.urls)
            replica = ManagedReplica(pool, place, DIALECTS[pool.engine], self._context(), url=url.rstrip("/"))
        else:
            place = next(n for n in range(len(taken) + 1) if n not in taken)
            replica = ManagedReplica(pool, place, DIALECTS[pool.engine], self._context())
        self._replicas[replica.name] = replica
        replica.begin()
        return replica

    async def settled(self) -> None:
        """Until every replica is ready or given up. `FleetError` unless some replica of each pool is ready."""
        await asyncio.gather(*(replica.settled.wait() for replica in self.replicas))
        if self._closed:
            return
        for name in {replica.pool.name for replica in self.replicas}:
            replicas = [replica for replica in self.replicas if replica.pool.name == name]
            if not any(replica.state is ReplicaPhase.READY for replica in replicas):
                first = replicas[0]
                raise FleetError(f"pool {name} has no replica: {first.name} {first.problem}{first.log_tail()}")

    # Changing what is wanted.

    async def apply(self, config: FleetConfig) -> Applied:
        """Bring the replicas to a new configuration, without a dropped request. One change at a time."""
        async with self._changing:
            before = {pool.name: pool for pool in self._config.pools}
            stale = _started_otherwise(self._config, config)
            self._config = config
            done = Applied()
            wanted = {pool.name: pool for pool in config.pools}
            gone = [replica for replica in self.replicas if replica.pool.name not in wanted]
            await self._remove(gone, done)
            for name, pool in wanted.items():
                old = before.get(name)
                if pool.urls and old is not None and old.urls:
                    await self._follow(pool, done)
                elif old is not None and (stale or not old.same_replicas(pool)):
                    await self._renew(pool, self._of(pool), done)
                await self._resize(pool, done)
            return done

    async def renew(self) -> Applied:
        """Start every replica again, one at a time, without a dropped request."""
        async with self._changing:
            done = Applied()
            for pool in self._config.pools:
                await self._renew(pool, self._of(pool), done)
            return done

    def _of(self, pool: Pool) -> list[ManagedReplica]:
        return [replica for replica in self.replicas if replica.pool.name == pool.name]

    async def _follow(self, pool: Pool, done: Applied) -> None:
        """Replicas that run elsewhere: those that are named now come before those that no longer are go."""
        named = {url.rstrip("/") for url in pool.urls}
        here = {replica.url for replica in self._of(pool)}
        await asyncio.gather(*(self._grow(pool, done) for _ in named - here))
        await self._remove([replica for replica in self._of(pool) if replica.url not in named], done)
        stale = [u for u in self._of(pool) if u.url is not None and not u.pool.same_at(pool, u.url)]
        await self._renew(pool, stale, done)

    async def _renew(self, pool: Pool, old: list[ManagedReplica], done: Applied) -> None:
        for replica in old[: pool.count]:
            if self._closed:
                return
            ready = [u for u in self._of(pool) if u is not replica and u.state is ReplicaPhase.READY]
            if starts_successor_first(len(ready)):
                if not await self._grow(pool, done):
                    return
                await self._remove([replica], done)
            else:
                await self._remove([replica], done)
                if not await self._grow(pool, done):
                    log.error("pool %s: the renewal stops here; the other replicas go on as they were", pool.name)
                    return

    async def _resize(self, pool: Pool, done: Applied) -> None:
        replicas = self._of(pool)
        if len(replicas) > pool.count:
            await self._remove(replicas[pool.count :], done)
        missing = pool.count - len(replicas)
        if missing > 0:
            await asyncio.gather(*(self._grow(pool, done) for _ in range(missing)))
        for replica in self._of(pool):
            if replica.state is ReplicaPhase.FAILED:
                # Asked for again: perhaps what was wrong has been put right.
                await self._remove([replica], done)
                await self._grow(pool, done)

    async def _grow(self, pool: Pool, done: Applied) -> bool:
        replica = self._add(pool)
        await replica.settled.wait()
        good = replica.state is ReplicaPhase.READY
        (done.started if good else done.failed).append(replica.name)
        return good

    async def _remove(self, replicas: list[ManagedReplica], done: Applied) -> None:
        await asyncio.gather(*(replica.stop() for replica in replicas))
        for replica in replicas:
            self._replicas.pop(replica.name, None)
            done.stopped.append(replica.name)

    async def close(self, *, force: Callable[[], bool] = lambda: False) -> None:
        """End every replica, whatever it is doing. Nothing of them is left when this returns."""
        self._closed = True
        await asyncio.gather(*(replica.end(force=force()) for replica in self.replicas))
        self._replicas.clear()
