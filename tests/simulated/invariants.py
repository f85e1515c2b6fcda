"""What must hold after every run, besides what each client saw."""

import asyncio
from typing import TYPE_CHECKING

from shoal.fleet.managed import ReplicaPhase
from simulated.verdicts import Violation

if TYPE_CHECKING:
    from simulated.world import World


def is_whole(world: "World") -> str | None:
    """Return what the fleet lacks to serve with all replicas; None: nothing."""
    registry, now = world.service.registry, world.loop.time()
    replicas = world.service.supervisor.replicas
    wanted = sum(pool.count for pool in world.service.config.pools)
    if len(replicas) != wanted:
        return f"it has {len(replicas)} replicas of {wanted}"
    for replica in replicas:
        if replica.state is not ReplicaPhase.READY:
            return f"{replica.name} is {replica.state}: {replica.problem}"
        if replica.name not in registry:
            return f"{replica.name} is not in the registry"
        known = registry.get(replica.name)
        if not known.state.healthy or known.state.ejected:
            return f"{replica.name} is unhealthy or ejected: {known.unhealthy_because}"
        if not known.breaker.allows(now):
            return f"the breaker of {replica.name} is {known.breaker.state(now)}"
    return None


def open_breakers(world: "World") -> list[str]:
    """Return the replicas whose breakers aren't closed."""
    return [replica.name for replica in world.service.registry.replicas if not replica.breaker.closed]


def check_books(world: "World") -> None:
    """Raise `Violation` unless nothing is held for anybody: all clients have their answers."""
    gateway, registry = world.service.gateway, world.service.registry
    assert gateway is not None
    for one in (gateway, *world.service._retired):
        if one.live:
            raise Violation(f"{one.live} requests live after their clients have gone")
        if one.admission.queued:
            raise Violation(f"{one.admission.queued} requests in the admission queue")
    ledger = registry.ledger
    released = sum(ledger.released.values())
    if ledger.live() or ledger.taken != released:
        raise Violation(f"leases: {ledger.taken} taken, {released} released, {ledger.live()} live")
    for replica in registry.replicas:
        state = replica.state
        held = state.inflight, state.decoding, state.pending_tokens
        if held != (0, 0, 0):
            raise Violation(f"the account of {replica.name} holds {held}: inflight, decoding, pending tokens")


async def check_no_orphans(world: "World") -> None:
    """Raise `Violation` where a replica still computes for nobody, unless it can't know."""
    hidden = world.plan.weather.silence or world.run.faults.keys() & {"cut", "storm"}
    if hidden:
        return
    await asyncio.sleep(5.0)
    for program in world.programs:
        if not program.ended and program.replica.running:
            raise Violation(f"{program.name} computes {program.replica.running} answers that nobody waits for")


def check_nothing_left(world: "World") -> None:
    """Record a violation for every task, connection and process that outlives the fleet."""
    for gateway in world.gateways:
        counts = gateway.splitter.counts
        if counts.live:
            world.violate(f"prefilled KV that was neither taken nor released: {counts}")
    current = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not current]
    if tasks:
        world.violate(f"{len(tasks)} tasks left, one of {tasks[0].get_coro()}")
    if world.network.transports:
        left = [f"{t.local}-{t.remote}" for t in world.network.transports]
        world.violate(f"{len(left)} connections left: {', '.join(left[:4])}")
    living = [p for p in world.processes.running.values() if p.get_returncode() is None]
    if living:
        world.violate(f"{len(living)} processes left")
