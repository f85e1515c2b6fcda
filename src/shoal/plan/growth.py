"""Growth over months: what one design takes each month as its users grow, and when the next server is needed.

    growth = parse_growth("15%/month", "growth")
    grown = grow(question, growth, months=12)

Hardware, layout and formats stay the same all along, as nobody swaps them monthly: of those that serve every month,
the ones that cost least over all of them. Only the number of replicas grows.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.plan.designs import Design, Plan
from shoal.plan.node_packing import pack, units_of
from shoal.plan.paying import HOURS_PER_MONTH
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.specs.errors import SpecError
from shoal.specs.quantities import parse_count
from shoal.specs.traffic import Workload

MAX_MONTHS = 120
DEFAULT_MONTHS = 12
MAX_RATE = 10.0
"""Growth per month that is taken for a slip of the keyboard beyond: eleven times the users."""
SHORTLIST = 12
"""Designs that are followed through all months: those that cost least in the first and last month together."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Users (or requests per second) by month: a rate per month, or a list of them."""

    rate: float = 0.0
    """Share by which each month exceeds the one before."""
    listed: tuple[float, ...] = ()
    """Users of each month; empty: by the rate."""

    def loads(self, workload: Workload, months: int) -> list[Workload]:
        """The traffic of each month. The first month of a rate is the workload's own."""
        if self.listed:
            base = workload.rate if workload.users is None else workload.users
            assert base is not None
            factors = [value / base for value in self.listed[:months]]
        else:
            factors = [(1.0 + self.rate) ** month for month in range(months)]
        return [scaled(workload, factor) for factor in factors]


def scaled(workload: Workload, factor: float) -> Workload:
    """The workload with its users and its rate times a factor."""
    users = None if workload.users is None else workload.users * factor
    rate = None if workload.rate is None else workload.rate * factor
    return replace(workload, users=users, rate=rate)


_RATE = re.compile(r"\+?\s*(-?[\d.]+)\s*%\s*(?:(?:/|per|an?)?\s*(month|mo|m|year|y|yr)(?:ly)?)?", re.I)


def parse_growth(text: str, field: str) -> Growth:
    """Read "15%/month", "100%/year", or users of each month: "100; 150; 200", "100, 150, 2k".

    Raises `SpecError` for anything else, and for "100,150,200", where a comma may separate thousands.
    """
    accepted = "a rate such as 15%/month or 100%/year, or users by month such as 100; 150; 200"
    match = _RATE.fullmatch(text.strip())
    if match is not None:
        return Growth(_monthly(match, text, field, accepted))
    parts = [part.strip() for part in re.split(r";|,\s|\s", text) if part.strip(" ,;")]
    if len(parts) < 2:
        unclear = "; is it thousands or months? Separate months by ';'" if "," in text else ""
        raise SpecError(field, text, accepted + unclear)
    if len(parts) > MAX_MONTHS:
        raise SpecError(field, text, f"at most {MAX_MONTHS} months")
    try:
        return Growth(listed=tuple(parse_count(part, field) for part in parts))
    except SpecError:
        raise SpecError(field, text, accepted) from None


def _monthly(match: re.Match[str], text: str, field: str, accepted: str) -> float:
    try:
        rate = float(match[1]) / 100
    except ValueError:
        raise SpecError(field, text, accepted) from None
    if (match[2] or "month").lower().startswith("y"):
        rate = (1.0 + rate) ** (1 / 12) - 1.0 if rate > -1 else -1.0
    if not -1.0 < rate <= MAX_RATE:
        raise SpecError(field, text, f"{accepted}; more than -100% and at most {MAX_RATE:.0%} a month")
    return rate


@dataclass(frozen=True, slots=True)
class Month:
    """One month of a grown plan."""

    number: int
    """1 is the first."""
    workload: Workload
    design: Design
    devices: int
    """Devices that there are: those in use, or more, where they were bought for an earlier month."""
    servers: int
    dollars: float | None
    """US dollars for the month; None where no price is known."""


@dataclass(frozen=True, slots=True)
class Grown:
    """One design through all months."""

    question: Question
    growth: Growth
    months: tuple[Month, ...]
    """Those that are served, from the first on; empty where not even the first is."""
    asked: int
    """Months that were asked for."""
    failed: Plan | None
    """The plan of the first month that nothing serves; None: all are served."""
    cheapest_now: Design | None
    """The first month's own best design."""

    @property
    def total(self) -> float | None:
        """US dollars over all months."""
        known = [month.dollars for month in self.months if month.dollars is not None]
        return sum(known) if len(known) == len(self.months) else None


Identity = tuple[object, ...]


def identity(design: Design) -> Identity:
    """What stays the same while a design grows."""
    return design.hardware, design.weights, design.kv_dtype, design.layout, design.prefill


def grow(question: Question, growth: Growth, months: int | None = None) -> Grown:
    """Plan every month. Raises `SpecError` for a number of months that a list does not have."""
    count = _count(growth, months)
    loads = growth.loads(question.workload, count)
    plans = _plans(question, loads)
    families = [{identity(d): d for d in reversed(plan.designs)} for plan in plans]
    served = _reach(families)
    chosen = [] if not served else _cheapest(families[:served])
    failed = plans[served] if served < len(plans) else None
    done = _months(question, loads, chosen)
    first = plans[0].best
    return Grown(question, growth, done, count, failed, first)


def _count(growth: Growth, months: int | None) -> int:
    if growth.listed and months is not None and months > len(growth.listed):
        raise SpecError("months", months, f"at most the {len(growth.listed)} months of the list")
    return months or len(growth.listed) or DEFAULT_MONTHS


def _plans(question: Question, loads: Sequence[Workload]) -> list[Plan]:
    """The plan of each month; between the ends, with the hardware and layouts of designs that serve both."""
    asked = [replace(question, workload=load) for load in loads]
    ends = {at: search(asked[at]) for at in {0, len(asked) - 1}}
    narrowed = _narrowed(question, *ends.values())
    return [
        ends[at] if at in ends else search(replace(narrowed, workload=q.workload)) for at, q in enumerate(asked)
    ]


def _narrowed(question: Question, *ends: Plan) -> Question:
    families = [{identity(d): d for d in reversed(plan.designs)} for plan in ends]
    common = set(families[0]).intersection(*families[1:])
    grown = sorted(([family[key] for family in families] for key in common), key=_order)[:SHORTLIST]
    if not grown:
        return question
    parts = {part.name for designs in grown for part in designs[0].accelerators}
    layouts = dict.fromkeys(layout for d, *_ in grown for layout in (d.layout, d.prefill) if layout is not None)
    accelerators = tuple(a for a in question.accelerators if a.name in parts)
    return replace(question, accelerators=accelerators, layouts=tuple(layouts))


def _reach(families: Sequence[dict[Identity, Design]]) -> int:
    """For how many months, from the first on, one design serves."""
    held = set(families[0])
    for month, family in enumerate(families):
        held &= set(family)
        if not held:
            return month
    return len(families)


def _cheapest(families: Sequence[dict[Identity, Design]]) -> list[Design]:
    """The design that serves all these months for the fewest dollars; those without a price by devices."""
    common = set(families[0]).intersection(*families[1:])
    grown = [[family[key] for family in families] for key in common]
    return min(grown, key=_order)


def _order(designs: Sequence[Design]) -> tuple[object, ...]:
    devices = sum(d.devices for d in designs)
    prices = [d.cost.per_hour for d in designs if d.cost is not None]
    priced = len(prices) == len(designs)
    sure = sum(1 for d in designs if d.sure)
    return not priced, sum(prices) if priced else devices, -sure, devices, designs[0].rung, designs[0].name


def _months(question: Question, loads: Sequence[Workload], chosen: Sequence[Design]) -> tuple[Month, ...]:
    """The months of one design. What was bought stays: owned devices never become fewer."""
    found: list[Month] = []
    for number, (load, design) in enumerate(zip(loads, chosen, strict=False), start=1):
        servers = len(pack(units_of("", question, design)) or ())
        devices, per_hour = design.devices, None if design.cost is None else design.cost.per_hour
        if found and question.basis == "owned":
            before = found[-1]
            servers, devices = max(servers, before.servers), max(devices, before.devices)
            if per_hour is not None and before.dollars is not None:
                per_hour = max(per_hour, before.dollars / HOURS_PER_MONTH)
        dollars = None if per_hour is None else per_hour * HOURS_PER_MONTH
        found.append(Month(number, load, design, devices, servers, dollars))
    return tuple(found)


def room(grown: Grown) -> float | None:
    """Users that the last month's servers hold, filled with replicas; None for split pools and for rates."""
    if not grown.months or grown.months[-1].workload.users is None:
        return None
    last = grown.months[-1]
    design, question = last.design, grown.question
    if design.split:
        return None
    units = units_of("", question, design)
    servers = pack(units) or ()
    more = sum(server.free // design.layout.world for server in servers)
    most = question.max_devices
    if most is not None:
        more = min(more, (most - design.devices) // design.layout.world)
    usable = max(1, math.floor(design.capacity * (1 - question.headroom)))
    return float((design.replicas - design.spares + more) * usable)
