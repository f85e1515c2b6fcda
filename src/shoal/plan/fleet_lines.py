"""A fleet of several models in sentences and as plain data."""

from collections.abc import Iterator

from shoal.plan.fleet_plan import FleetPlan, Placed, more_replicas
from shoal.plan.node_packing import Server
from shoal.plan.paying import HOURS_PER_MONTH
from shoal.plan.report.data import design_data
from shoal.plan.restate import restate
from shoal.plan.words import plural, usd

Data = dict[str, object]


def fleet_lines(fleet: FleetPlan) -> list[str]:
    """The answer: what each model runs on, the total, who shares servers, what is left over."""
    return [*_failures(fleet)] if not fleet.serves else [*_total(fleet), *_shared(fleet), *_left_over(fleet)]


def _failures(fleet: FleetPlan) -> Iterator[str]:
    for entry in fleet.placed:
        if entry.design is not None:
            continue
        if entry.plan.best is None:
            reason = entry.plan.impossible.message if entry.plan.impossible else "nothing serves it"
            yield f"{entry.member.name}: {reason}"
        else:
            fewest = min(entry.plan.designs, key=lambda d: d.devices)
            there = " and ".join(f"{count:,} × {part.name}" for part, count in fleet.owned)
            yield (
                f"{entry.member.name}: no room beside the others on {there}; alone it takes at least "
                f"{plural(fewest.devices, 'device')} ({fewest.name})."
            )


def _total(fleet: FleetPlan) -> Iterator[str]:
    parts: dict[str, list[int]] = {}
    for server in fleet.servers:
        parts.setdefault(server.accelerator.name, []).append(server.size)
    hardware = ", ".join(f"{plural(len(sizes), 'server')} of {name}" for name, sizes in parts.items())
    sizes = sum(server.size for server in fleet.servers)
    basis = fleet.placed[0].member.question.basis
    models = plural(len(fleet.placed), "model")
    yield f"In all: {models} on {plural(fleet.devices, 'device')} of {sizes:,} in {hardware}."
    if fleet.per_hour is not None:
        yield (
            f"Cost: {usd(fleet.per_hour)} an hour {basis} for whole servers, "
            f"{usd(fleet.per_hour * HOURS_PER_MONTH)} a month."
        )
    else:
        unpriced = {s.accelerator.name for s in fleet.servers if s.accelerator.price(basis) is None}
        yield f"No {basis} price of {' and '.join(sorted(unpriced))} is known."
    used = sum(1 for server in fleet.servers if server.used)
    if fleet.alone is not None and fleet.alone > used:
        yield (
            f"On servers of its own for each model it would take {fleet.alone:,}: sharing saves "
            f"{plural(fleet.alone - used, 'server')}."
        )


def _shared(fleet: FleetPlan) -> Iterator[str]:
    """Servers with the same content in a row are one line."""
    start = 0
    for end in range(1, len(fleet.servers) + 1):
        same = end < len(fleet.servers) and _content(fleet.servers[end]) == _content(fleet.servers[start])
        if same:
            continue
        numbers = f"Server {start + 1}" if end - start == 1 else f"Servers {start + 1} to {end}"
        yield f"{numbers} ({fleet.servers[start].accelerator.name}): {_who(fleet.servers[start])}."
        start = end


def _content(server: Server) -> tuple[object, ...]:
    return server.accelerator.name, server.size, server.used


def _who(server: Server) -> str:
    parts = [f"{name} {devices}" for name, devices in server.used]
    return ", ".join([*parts, *([f"{server.free} free"] if server.free else [])])


def _left_over(fleet: FleetPlan) -> Iterator[str]:
    if not fleet.free:
        yield "Nothing is left over."
        return
    holds = []
    for entry in fleet.placed:
        replicas, users = more_replicas(fleet, entry)
        if replicas:
            holds.append(f"{plural(replicas, 'replica')} more of {entry.member.name} ({plural(users, 'user')})")
    whole = all(entry.design is not None and not entry.design.split for entry in fleet.placed)
    none = ": too little in one place for another replica" if whole else ""
    tail = f": room for {' or '.join(holds)}" if holds else none
    yield f"Left over: {plural(fleet.free, 'device')}{tail}."


def fleet_data(fleet: FleetPlan) -> Data:
    """The same as plain data for JSON."""
    return {
        "feasible": fleet.serves,
        "models": [_placed(entry) for entry in fleet.placed],
        "servers": [
            {
                "accelerator": server.accelerator.name, "devices": server.size, "free": server.free,
                "used": [{"model": name, "devices": devices} for name, devices in server.used],
            }
            for server in fleet.servers
        ],
        "devices": fleet.devices,
        "servers_without_sharing": fleet.alone,
        "usd_per_hour": fleet.per_hour,
        "sentences": fleet_lines(fleet),
    }  # fmt: skip


def _placed(entry: Placed) -> Data:
    return {
        "model": entry.member.name,
        "question": restate(entry.member.question),
        "design": None if entry.design is None else design_data(entry.design),
    }
