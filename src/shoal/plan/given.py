"""A design that the asker names: its speed and memory for the traffic, side by side with others.

designs = [given(question, layout) for layout in parse_layouts("tp=8; tp=4,pp=2 x2", "layout")]
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.plan.cautions import footprint
from shoal.plan.designs import Design, Plan
from shoal.plan.levers import searched
from shoal.plan.question import Question
from shoal.plan.words import milliseconds, plural, seconds, usd
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import AXES, Layout
from shoal.specs.traffic import Slo

MAX_DEGREE = 4096


@dataclass(frozen=True, slots=True)
class NamedLayout:
    """A layout as typed, and how many replicas of it; None: as many as the traffic needs."""

    layout: Layout
    replicas: int | None


_AXIS = re.compile(r"([a-z]+)\s*=?\s*(\d+)")


def parse_layouts(text: str, field: str) -> tuple[NamedLayout, ...]:
    """Layouts separated by `;` or `vs`: "tp=8", "tp8", "tp=4,pp=2 x2", "tp=8 ep=8 replicas=3".

    Raises `SpecError` naming the axes that there are.
    """
    parts = [part.strip() for part in re.split(r";|\bvs\.?\b|\|", text.lower()) if part.strip()]
    if not parts:
        raise SpecError(field, text, "a layout such as tp=8 or tp=4,pp=2")
    return tuple(_parse_layout(part, text, field) for part in parts)


def _parse_layout(part: str, text: str, field: str) -> NamedLayout:
    accepted = f"axes ({', '.join(AXES)}) with degrees, and replicas: tp=8; tp=4,pp=2; tp=2 x4"
    times = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(.*?)(?:\s*[x×*]\s*(\d+))?", part)
    assert times is not None
    body = times[2].strip(" ()")
    degrees: dict[str, int] = {}
    for axis, degree in _AXIS.findall(body):
        if axis not in (*AXES, "replicas") or not 1 <= int(degree) <= MAX_DEGREE or axis in degrees:
            raise SpecError(field, text, accepted)
        degrees[axis] = int(degree)
    if not degrees or re.sub(r"[\s,+]", "", _AXIS.sub("", body)):
        raise SpecError(field, text, accepted)
    counted = times[1] or times[3]
    replicas = degrees.pop("replicas", int(counted) if counted else None)
    return NamedLayout(Layout(**degrees), replicas)


@dataclass(frozen=True, slots=True)
class Given:
    """What a named design does."""

    accelerator: Accelerator
    named: NamedLayout
    design: Design | None
    """At the load that each replica gets; None where it cannot run."""
    replicas: int
    meets: bool
    """The targets, at the percentile asked for, with that many replicas."""
    needed: Design | None
    """The design with as many replicas as the targets need; None where no number meets them."""
    reason: str
    """Why it cannot run, or which target it misses; empty where neither."""


def given(question: Question, accelerator: Accelerator, named: NamedLayout) -> Given:
    """Evaluate a named design on one accelerator. Formats are those of the question, or the best of all."""
    base = replace(
        question, accelerators=(accelerator,), layouts=(named.layout,), split="never",
        replica_limit=max(question.replica_limit, named.layout.world), max_devices=None,
    )  # fmt: skip
    plan = searched(base)
    needed = None if plan is None else plan.best
    if named.replicas is None and needed is not None:
        return Given(accelerator, named, needed, needed.replicas, True, needed, "")
    count = named.replicas or 1
    alone = searched(_one_of(base, count, named.layout))
    design = None if alone is None else alone.best
    if design is None:
        return Given(accelerator, named, None, count, False, needed, _reason(alone or plan))
    missed = _missed(question, design)
    return Given(accelerator, named, design, count, not missed, needed, missed)


def _one_of(question: Question, replicas: int, layout: Layout) -> Question:
    """The share of the traffic that one replica gets, whatever the targets."""
    load = question.workload
    users = None if load.users is None else max(1.0, load.users / replicas)
    rate = None if load.rate is None else load.rate / replicas
    return replace(
        question, workload=replace(load, users=users, rate=rate), slo=Slo(None, None, question.slo.percentile),
        headroom=0.0, spares=0, max_devices=layout.world,
    )  # fmt: skip


def _missed(question: Question, design: Design) -> str:
    slo, parts = question.slo, []
    if slo.ttft is not None and design.ttft.mean > slo.ttft:
        parts.append(f"TTFT {design.ttft.mean:.3g} s of {slo.ttft:g} s allowed")
    if slo.tpot is not None and design.tpot.mean > slo.tpot:
        parts.append(f"TPOT {design.tpot.mean * 1e3:.3g} ms of {slo.tpot * 1e3:g} ms allowed")
    return ", ".join(parts)


def _reason(plan: Plan | None) -> str:
    if plan is None:
        return "the engine has no such layout"
    if plan.rejections:
        first = plan.rejections[0]
        return f"{first.reason}: {first.detail}"
    return plan.impossible.message if plan.impossible is not None else "it cannot run"


def comparison(question: Question, found: list[Given]) -> list[tuple[str, list[str]]]:
    """Rows of a table, one column per design: (what, values)."""
    rows: list[tuple[str, list[str]]] = [
        ("design", [f"{g.replicas} × {g.named.layout.label()}" for g in found]),
        ("on", [f"{g.replicas * g.named.layout.world:,} × {g.accelerator.name}" for g in found]),
        ("weights, cache", [_of(g, lambda d: f"{d.weights.name}, {d.kv_dtype}") for g in found]),
        ("TTFT", [_of(g, lambda d: seconds(d.ttft)) for g in found]),
        ("TPOT", [_of(g, lambda d: milliseconds(d.tpot)) for g in found]),
        ("tokens/s per user", [_of(g, lambda d: f"{d.per_user:,.0f}") for g in found]),
        ("tokens/s in all", [_all(g) for g in found]),
        ("requests per replica", [_of(g, _held) for g in found]),
        ("weights per replica", [_of(g, lambda d: _weights(question, d)) for g in found]),
        ("cost", [_cost(g) for g in found]),
        ("targets", [_targets(g) for g in found]),
    ]  # fmt: skip
    return rows


def _of(found: Given, text: Callable[[Design], str]) -> str:
    return "–" if found.design is None else text(found.design)


def _held(design: Design) -> str:
    return f"{design.load:,.0f}, memory holds {design.memory_batch:,}"


def _weights(question: Question, design: Design) -> str:
    return f"{footprint(question, design).weights / 1e9:,.1f} GB"


def _all(found: Given) -> str:
    if found.design is None:
        return "–"
    scale = found.replicas / found.design.replicas
    return f"{found.design.tokens_per_second.mean * scale:,.0f}"


def _cost(found: Given) -> str:
    if found.design is None or found.design.cost is None:
        return "–" if found.design is None else "no price known"
    scale = found.replicas / found.design.replicas
    return f"{usd(found.design.cost.per_hour * scale)} an hour"


def _targets(found: Given) -> str:
    if found.design is None:
        return f"cannot run: {found.reason}"
    if found.meets:
        return "met"
    if found.needed is None:
        return f"missed: {found.reason}; no number of replicas meets them"
    return f"missed: {found.reason}; {plural(found.needed.replicas, 'replica')} would meet them"
