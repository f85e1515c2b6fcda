"""Replicas of several models on servers: which of them share one, and what stays free.

First fit, largest first: a replica takes the first server with room. Sizes are mostly powers of two, for which that
wastes nothing that another order would save.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.plan.designs import Design
from shoal.plan.question import Question
from shoal.specs.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class Unit:
    """Devices that have to be on one server (or fill several): a replica, or a worker of a split."""

    owner: str
    accelerator: Accelerator
    devices: int


@dataclass(frozen=True, slots=True)
class Server:
    """One server and who uses it."""

    accelerator: Accelerator
    size: int
    """Devices that it has."""
    used: tuple[tuple[str, int], ...]
    """(owner, devices), in the order of the owners' first units."""

    @property
    def free(self) -> int:
        return self.size - sum(devices for _, devices in self.used)


def units_of(owner: str, question: Question, design: Design) -> tuple[Unit, ...]:
    """Return what a design places: its replicas or workers, or all of it where the engine stays on one server."""
    if design.split and question.capability_for(design.accelerator).reach == "server":
        return (Unit(owner, design.accelerator, design.devices),)
    replicas = [Unit(owner, design.accelerator, design.layout.world)] * design.replicas
    if design.prefill is None:
        return tuple(replicas)
    first = Unit(owner, design.accelerators[-1], design.prefill.world)
    return (*replicas, *[first] * design.prefill_replicas)


def pack(units: Iterable[Unit], owned: Sequence[tuple[Accelerator, int]] = ()) -> tuple[Server, ...] | None:
    """Place every unit. Servers are as many as it takes, or those that are `owned`: (accelerator, devices).

    None: what is owned does not hold them.
    """
    limits = {part.name: count for part, count in owned}
    by_part: dict[str, list[Unit]] = {}
    for unit in units:
        by_part.setdefault(unit.accelerator.name, []).append(unit)
    for part, _ in owned:
        by_part.setdefault(part.name, [])
    parts = {part.name: part for part, _ in owned}
    servers: list[Server] = []
    for name, placed in by_part.items():
        part = parts[name] if name in parts else placed[0].accelerator
        if owned and name not in limits:
            return None
        found = _on_part(placed, part, limits.get(name))
        if found is None:
            return None
        servers += found
    return tuple(servers)


def _on_part(units: Sequence[Unit], part: Accelerator, limit: int | None) -> list[Server] | None:
    size = part.devices_per_node
    bins = [] if limit is None else [size] * (limit // size) + ([limit % size] if limit % size else [])
    sizes = list(bins)
    used: list[dict[str, int]] = [{} for _ in bins]
    for unit in sorted(units, key=lambda u: -u.devices):
        place = _place(unit.devices, bins, sizes, size)
        if place is None:
            if limit is not None:
                return None
            count = max(1, math.ceil(unit.devices / size))
            place = list(range(len(bins), len(bins) + count))
            bins += [size] * count
            sizes += [size] * count
            used += [{} for _ in range(count)]
        left = unit.devices
        for at in place:
            taken = min(left, bins[at])
            bins[at] -= taken
            left -= taken
            used[at][unit.owner] = used[at].get(unit.owner, 0) + taken
    return [Server(part, total, tuple(who.items())) for total, who in zip(sizes, used, strict=True)]


def _place(devices: int, free: Sequence[int], sizes: Sequence[int], size: int) -> list[int] | None:
    """The first server with room; for a unit larger than one, as many empty whole servers as it fills."""
    if devices <= size:
        return next(([at] for at, room in enumerate(free) if room >= devices), None)
    whole = [at for at, room in enumerate(free) if room == sizes[at] == size]
    count = math.ceil(devices / size)
    return whole[:count] if len(whole) >= count else None
