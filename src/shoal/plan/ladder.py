"""The escalation ladder: six rungs from one device to split pools, and why each is or isn't needed.

A rung is tried on the accelerator of the plan's first design. The lowest rung that works is the one to stop at,
unless a higher one is cheaper by more than the predictions can be wrong.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.plan.cost import too_close
from shoal.plan.designs import Design, Miss, Plan
from shoal.plan.words import layout_words, per_million, plural, usd
from shoal.specs.layout import Layout

Verdict = Literal["chosen", "works", "fails", "not needed", "not applicable"]
RUNGS = (
    "one device",
    "replicas behind a router",
    "tensor parallelism inside a fast domain",
    "pipeline stages across servers",
    "experts spread over devices",
    "prefill and decode split",
)


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung and its verdict."""

    number: int
    """1 to 6."""
    name: str
    verdict: Verdict
    reason: str
    """A sentence."""


def ladder(plan: Plan) -> tuple[Rung, ...]:
    """All six rungs, lowest first; empty where nothing serves."""
    best = plan.best
    if best is None:
        return ()
    here = [d for d in plan.designs if d.beside(best)]
    return tuple(_rung(plan, best, here, number) for number in range(1, len(RUNGS) + 1))


def _rung(plan: Plan, best: Design, here: list[Design], number: int) -> Rung:
    name = RUNGS[number - 1]
    if number == best.rung:
        return Rung(number, name, "chosen", _chosen(best))
    moe = any(layer.ffn.kind == "moe" for layer in plan.question.model.layers)
    if number == 5 and not moe:
        return Rung(number, name, "not applicable", f"{plan.question.model.name} has no experts to spread.")
    if number == 6 and plan.question.split == "never":
        return Rung(number, name, "not applicable", "Split pools were ruled out by the question.")
    if number == 2 and best.rung == 1:
        return Rung(
            number, name, "not needed", "One replica already carries the traffic; a second would be a spare."
        )
    most = plan.question.max_devices
    if most == 1 and number > 1:
        return Rung(number, name, "not applicable", "There is one device.")
    rivals = [d for d in here if d.rung == number]
    if not rivals:
        return Rung(number, name, "fails", _why_not(plan, best, number))
    rival = min(rivals, key=lambda d: (d.cost.per_million_output.mean if d.cost else float(d.devices), d.devices))
    return Rung(number, name, "not needed" if number > best.rung else "works", _compared(best, rival))


def _chosen(best: Design) -> str:
    layout = layout_words(best.layout)
    if best.prefill is not None:
        return (
            f"{plural(best.prefill_replicas, 'worker')} of {layout_words(best.prefill)} for prefill{_on(best, 1)}, "
            f"{plural(best.replicas, 'worker')} of {layout} for decode{_on(best, 0)}."
        )
    if best.rung == 1:
        return f"Everything fits on one {best.accelerator.name}, and it is quick enough: stop here."
    if best.rung == 2:
        return (
            f"The model fits on one {best.accelerator.name}; {best.replicas} copies carry the traffic and never "
            "talk "
            "to each other."
        )
    return f"{plural(best.replicas, 'replica')} of {layout}."


def _compared(best: Design, rival: Design) -> str:
    """Why the plan's first design comes before another rung's cheapest."""
    what = f"{plural(rival.devices, 'device')} as {_shape(rival)}"
    if best.cost is None or rival.cost is None:
        more = rival.devices - best.devices
        difference = (
            f"{plural(more, 'device')} more" if more > 0 else "no fewer devices" if more == 0 else "fewer devices"
        )
        return f"It would take {what}: {difference}."
    price = f"{usd(rival.cost.per_million_output.mean)} against {usd(best.cost.per_million_output.mean)}"
    if too_close(best, rival):
        tail = ""
        if rival.devices > best.devices:
            tail = ", and the design chosen is smaller"
        elif rival.rung > best.rung:
            tail = ", and the design chosen is simpler"
        return f"{what} costs {price}: too close to call{tail}."
    dearer = rival.cost.per_million_output.mean > best.cost.per_million_output.mean
    unsure = "" if dearer or rival.sure or not best.sure else ": cheaper, but it may miss a target"
    return f"{what} costs {price} a million output tokens{': more for the same traffic' if dearer else unsure}."


def _shape(design: Design) -> str:
    decode = f"{design.replicas} × {design.layout.label()}"
    if design.prefill is None:
        return decode
    first = f"{design.prefill_replicas} × {design.prefill.label()} prefill{_on(design, 1)}"
    return f"{first} + {decode} decode{_on(design, 0)}"


def _on(design: Design, part: int) -> str:
    """ " on h100_sxm" where the pools run on different accelerators."""
    return f" on {design.accelerators[part].name}" if design.mixed else ""


def _why_not(plan: Plan, best: Design, number: int) -> str:
    misses = [m for m in plan.missed if m.accelerator == best.accelerator.name and m.layout is not None]
    own = [m for m in misses if m.layout is not None and _rung_of(m.layout) in _layouts_of(number)]
    if own:
        nearest = min(own, key=_nearness)
        text = f"{nearest.reason}: {nearest.label}: {nearest.detail}."
        return text[0].upper() + text[1:]
    if number == 1:
        single = [d for d in plan.designs if d.accelerator.name == best.accelerator.name and d.layout.world == 1]
        if single:
            most = max(single, key=lambda d: d.capacity)
            bound = {"tpot": "the TPOT target", "ttft": "the TTFT target", "engine": "the engine's batch limit"}
            limit = bound.get(most.limit, "its memory")
            free = f" with {plan.question.headroom:.0%} kept free" if plan.question.headroom else ""
            return (
                f"One device takes {plural(most.capacity, 'request')}, bounded by {limit}: it would take "
                f"{plural(most.replicas, 'device')}{free}."
            )
        return f"No single {best.accelerator.name} serves it."
    if number == 6:
        return "No split meets the targets here, or no link joins two pools."
    if number == 4:
        return "No layout with stages was left to try."
    return f"No such layout of a {best.accelerator.name} serves the traffic."


_ORDER = ("context does not fit", "no room for KV", "weights do not fit")


def _nearness(miss: Miss) -> tuple[int, float, int]:
    place = _ORDER.index(miss.reason) + 1 if miss.reason in _ORDER else 0
    return place, miss.short, miss.devices


def _rung_of(layout: Layout) -> int:
    if layout.ep > 1 or layout.dp > 1:
        return 5
    return 4 if layout.pp > 1 else 3 if layout.tp > 1 else 1


def _layouts_of(number: int) -> tuple[int, ...]:
    return (1,) if number <= 2 else (number,)


def published_precision(plan: Plan) -> Design | None:
    """The first design that converts no weights, if that is not the plan's first."""
    if plan.best is None or plan.best.weights.native:
        return None
    return next((d for d in plan.designs if d.weights.native), None)


def without_split(plan: Plan) -> Design | None:
    """The first design with one pool, where the plan's first has two."""
    if plan.best is None or not plan.best.split:
        return None
    return next((d for d in plan.designs if not d.split), None)


def with_split(plan: Plan) -> Design | None:
    """The cheapest split on the accelerator of the plan's first design."""
    best = plan.best
    if best is None:
        return None
    splits = [d for d in plan.designs if d.split and d.beside(best)]
    return min(splits, key=lambda d: (d.devices, per_million(d)), default=None)
