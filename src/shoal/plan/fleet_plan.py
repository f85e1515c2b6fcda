"""Several models on shared hardware: a design for each, chosen so that all of them together cost least.

    fleet = plan_fleet([Member("llama-3.1-70b", question), …], owned=((h100, 16),))

Each model is searched by itself; of its designs the best on each hardware are tried together. What is paid for is
whole servers, so a dearer design that fills what another leaves can be the better one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.plan.designs import Design, Plan
from shoal.plan.node_packing import Server, Unit, pack, units_of
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.specs.hardware import Accelerator

PER_HARDWARE = 3
"""Designs of one model on one hardware that are tried: the cheapest, and the next with fewer devices."""
MAX_OPTIONS = 24
ROUNDS = 8
"""Passes over the models in which one after another may change its design."""
_NEVER = 1e18

Owned = tuple[tuple[Accelerator, int], ...]


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a fleet: its own users, lengths and targets."""

    name: str
    question: Question


@dataclass(frozen=True, slots=True)
class Placed:
    """A model and the design chosen for it."""

    member: Member
    plan: Plan
    design: Design | None
    """None: nothing serves it, or nothing beside the others on what is owned."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """All models of a fleet on their servers."""

    placed: tuple[Placed, ...]
    servers: tuple[Server, ...]
    """Every server that is paid for or owned; empty where not all models can be served."""
    owned: Owned
    alone: int | None
    """Servers if each model had servers of its own; None where not all models can be served."""

    @property
    def serves(self) -> bool:
        return all(entry.design is not None for entry in self.placed)

    @property
    def devices(self) -> int:
        return sum(entry.design.devices for entry in self.placed if entry.design is not None)

    @property
    def per_hour(self) -> float | None:
        """US dollars an hour of all servers, used or not; None where a price is not known."""
        basis = self.placed[0].member.question.basis
        prices = [(server.accelerator.price(basis), server.size) for server in self.servers]
        known = [price * size for price, size in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    @property
    def free(self) -> int:
        return sum(server.free for server in self.servers)


def plan_fleet(members: Sequence[Member], owned: Owned = ()) -> FleetPlan:
    """Plan every model of a fleet.

    Args:
        owned: (accelerator, devices) that there are; empty: as many as it takes.
    """
    plans = [_searched(member, owned) for member in members]
    options = [list(_options(plan, owned)) for plan in plans]
    if not all(options):
        return _fleet(members, plans, _those_that_fit(members, options, owned), owned, fits=False)
    best = min(
        (_improved(members, options, start, owned) for start in _starts(options)), key=lambda found: found[0]
    )
    if best[0][0] >= _NEVER:
        return _fleet(members, plans, _those_that_fit(members, options, owned), owned, fits=False)
    return _fleet(members, plans, [found[at] for found, at in zip(options, best[1], strict=True)], owned, fits=True)


def _searched(member: Member, owned: Owned) -> Plan:
    question = member.question
    if owned:
        question = replace(question, max_devices=sum(count for _, count in owned))
    return search(question)


def _options(plan: Plan, owned: Owned) -> Iterator[Design]:
    """The designs of one model worth combining with others', the best first."""
    limits = {part.name: count for part, count in owned}
    seen: dict[str, list[Design]] = {}
    count = 0
    for design in plan.designs:
        if owned and any(devices > limits.get(part.name, 0) for part, devices in design.parts):
            continue
        kept = seen.setdefault(design.hardware, [])
        if len(kept) < PER_HARDWARE and all(_differs(design, other) for other in kept):
            kept.append(design)
            count += 1
            yield design
            if count == MAX_OPTIONS:
                return


def _differs(design: Design, other: Design) -> bool:
    """Whether it could fit where the other does not: fewer devices, or smaller pieces."""
    return design.devices < other.devices or design.layout.world < other.layout.world


def _starts(options: Sequence[Sequence[Design]]) -> Iterator[tuple[int, ...]]:
    """Where to begin: each model's first design, and each model's first on every one hardware."""
    yield tuple(0 for _ in options)
    for hardware in dict.fromkeys(design.hardware for found in options for design in found):
        first = [next((n for n, d in enumerate(found) if d.hardware == hardware), 0) for found in options]
        yield tuple(first)
    yield tuple(min(range(len(found)), key=lambda n: found[n].devices) for found in options)


Score = tuple[float, float, int]


def _improved(
    members: Sequence[Member], options: Sequence[Sequence[Design]], start: tuple[int, ...], owned: Owned
) -> tuple[Score, tuple[int, ...]]:
    """The best that changing one model's design at a time arrives at."""
    at, score = start, _score(members, options, start, owned)
    for _ in range(ROUNDS):
        before = score
        for place, found in enumerate(options):
            for other in range(len(found)):
                tried = (*at[:place], other, *at[place + 1 :])
                value = _score(members, options, tried, owned)
                if value < score:
                    at, score = tried, value
        if score == before:
            break
    return score, at


def _score(
    members: Sequence[Member], options: Sequence[Sequence[Design]], at: tuple[int, ...], owned: Owned
) -> Score:
    """What a combination is ranked by: dollars of what is paid for, then of what is used, then devices."""
    designs = [found[n] for found, n in zip(options, at, strict=True)]
    servers = pack(_units(members, designs), owned)
    devices = sum(d.devices for d in designs)
    if servers is None:
        # How far it is from fitting leads towards what fits.
        return _NEVER, float(devices), devices
    basis = members[0].question.basis
    used = sum(_dollars(part, count, basis) for d in designs for part, count in d.parts)
    # What is owned is paid for in any case: the most is left over where the least is used.
    paid = 0.0 if owned else sum(_dollars(s.accelerator, s.size, basis) for s in servers)
    return paid, used, devices


def _dollars(part: Accelerator, count: int, basis: str) -> float:
    price = part.price_owned if basis == "owned" else part.price_rented
    # Hardware without a price comes after all that has one, by devices, as in every ranking.
    return count * (1e6 if price is None else price)


def _units(members: Sequence[Member], designs: Sequence[Design | None]) -> list[Unit]:
    return [
        unit
        for member, design in zip(members, designs, strict=True)
        if design is not None
        for unit in units_of(member.name, member.question, design)
    ]


def _those_that_fit(
    members: Sequence[Member], options: Sequence[Sequence[Design]], owned: Owned
) -> list[Design | None]:
    """Designs for as many models as what is owned holds: those that take the fewest devices first."""
    chosen: list[Design | None] = [None] * len(options)
    fewest = {place: min(d.devices for d in found) for place, found in enumerate(options) if found}
    for place in sorted(fewest, key=lambda at: fewest[at]):
        for design in sorted(options[place], key=lambda d: d.devices):
            tried = [*chosen[:place], design, *chosen[place + 1 :]]
            if pack(_units(members, tried), owned) is not None:
                chosen = tried
                break
    return chosen


def _fleet(
    members: Sequence[Member], plans: Sequence[Plan], designs: Sequence[Design | None], owned: Owned, fits: bool
) -> FleetPlan:
    placed = tuple(Placed(*entry) for entry in zip(members, plans, designs, strict=True))
    servers = pack(_units(members, designs), owned)
    if not fits or servers is None:
        return FleetPlan(placed, (), owned, None)
    alone = 0
    for member, design in zip(members, designs, strict=True):
        found = pack(_units([member], [design]))
        alone += len(found or ())
    return FleetPlan(placed, servers, owned, alone)


def more_replicas(fleet: FleetPlan, entry: Placed) -> tuple[int, int]:
    """(replicas, users) of one model that what is left over would hold; none of a design with split pools."""
    design = entry.design
    if design is None or design.split:
        return 0, 0
    rooms = [s.free for s in fleet.servers if s.accelerator.name == design.accelerator.name]
    replicas = sum(room // design.layout.world for room in rooms)
    each = max(1, math.floor(design.capacity * (1 - entry.member.question.headroom)))
    return replicas, replicas * each
