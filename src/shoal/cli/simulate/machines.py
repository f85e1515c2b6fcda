"""Replicas to simulate, from options: what all ways to name a fleet share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.cli.simulate.options import Replicas
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.policy.routing import RouterConfig
    from shoal.sim import Fault, SimulatedFleet
    from shoal.sim.hardware import PlannedReplica


@dataclass(frozen=True, slots=True)
class Made:
    """A fleet, and what a reader has to know of it."""

    fleet: SimulatedFleet
    facts: tuple[tuple[str, str], ...]
    users: float | None = None
    """Of the plan that it was made from."""
    input: str | None = None
    output: str | None = None
    notes: tuple[str, ...] = ()
    """Where its simulation differs from it."""


def named_fleet(options: Replicas) -> Made:
    """The fleet of a command line: so many equal replicas behind one gateway."""
    from shoal.sim import SimulatedFleet

    count = 1 if options.replicas is None else options.replicas
    replica = planned(options)
    specs = replicas_of(replica, count, options, prefix="r")
    fleet = SimulatedFleet(replicas=specs, router=router_of(options.router))
    facts = (fact(count, replica, options), ("router", fleet.router.policy))
    return Made(fleet, facts, notes=replica.deviations)


def planned(options: Replicas, behaves_as: str | None = None) -> PlannedReplica:
    """One replica of a command line, counted by the planner.

    Args:
        behaves_as: the engine whose way to admit and preempt it has, if it isn't the planner's.
    """
    from shoal.plan.api import find_model
    from shoal.plan.artifact import read_artifact
    from shoal.plan.given import parse_layouts
    from shoal.sim.hardware import BLOCK, Machine, planned_replica
    from shoal.specs.catalog import load_catalog

    assert options.model is not None
    assert options.gpu is not None
    catalog = load_catalog()
    _check(options)
    layout = None if options.layout is None else parse_layouts(options.layout, "layout")[0].layout
    machine = Machine(
        model=find_model(options.model),
        accelerator=catalog.accelerator(options.gpu),
        layout=layout,
        engine=options.engine or "vllm",
        engine_version=options.engine_version,
        behaves_as=behaves_as,
        weights=options.weights or "checkpoint",
        kv_dtype=options.kv_dtype,
        memory_utilization=options.memory_utilization,
        max_num_seqs=options.max_num_seqs,
        token_budget=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        block_size=options.block_size or BLOCK,
        num_blocks=options.kv_blocks,
    )
    constants = None if options.constants is None else read_artifact(options.constants)
    return planned_replica(machine, catalog, constants)


def _check(options: Replicas) -> None:
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_blocks", "max_inflight"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 10**9:
            raise SpecError(name, value, "a whole number from 1")
    if options.max_model_len is not None and options.max_model_len < 2:
        raise SpecError("max_model_len", options.max_model_len, "2 or more")
    if options.kv_blocks is not None and options.kv_blocks < 2:
        raise SpecError("kv_blocks", options.kv_blocks, "2 or more")


def replicas_of(planned: PlannedReplica, count: int, options: Replicas, prefix: str, **changes: Any) -> Any:
    """`count` equal replicas as a tuple of `ReplicaSpec`."""
    from shoal.sim import ReplicaSpec

    if not 1 <= count <= 100_000:
        raise SpecError("replicas", count, "a whole number from 1 to 100,000")
    spec = ReplicaSpec(
        name="",
        scheduler=planned.scheduler,
        step=planned.step,
        front=planned.front,
        kv_token_bytes=planned.kv_token_bytes,
        max_inflight=options.max_inflight or 256,
    )
    return tuple(replace(spec, name=f"{prefix}{i}", **changes) for i in range(count))


def fact(count: int, planned: PlannedReplica, options: Replicas) -> tuple[str, str]:
    """A line of a report: what the replicas are."""
    tokens = planned.scheduler.kv_capacity
    size = planned.scheduler.block_size
    text = f"{count} x {options.model}, {planned.description}, {tokens:,} tokens of KV each in blocks of {size}"
    return "fleet", text


def router_of(policy: str | None, base: RouterConfig | None = None) -> RouterConfig:
    """The router's settings with the policy that was asked for."""
    from shoal.cli.serve_config import routing
    from shoal.policy.routing import RouterConfig

    found: RouterConfig = base or RouterConfig() if policy is None else routing(policy, base)
    return found


_FAULT = re.compile(r"(\w+)@([\d.]+):([^+]+?)(?:\+([\d.]+))?(?:x([\d.]+))?$")


def faults_of(texts: Sequence[str] | None) -> tuple[Fault, ...]:
    """Faults as written on the command line."""
    from shoal.sim import Fault

    found = []
    for text in texts or ():
        match = _FAULT.match(text)
        if match is None:
            raise SpecError("fault", text, "KIND@SECONDS:REPLICA with +SECONDS and xFACTOR, such as slow@9:r1+30x4")
        kind, at, replica, seconds, factor = match.groups()
        given: dict[str, Any] = {
            name: float(value) for name, value in (("seconds", seconds), ("factor", factor)) if value is not None
        }
        found.append(Fault(kind, float(at), replica, **given))  # type: ignore[arg-type]
    return tuple(found)
