"""What would change the answer: prices worked out, users, context and targets by searching again."""

from dataclasses import dataclass, replace

from shoal.plan.cost import too_close
from shoal.plan.designs import Design, Plan
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.plan.words import plural
from shoal.specs.errors import SpecError
from shoal.specs.traffic import Lengths, Slo, Workload

RIVALS = 3
"""Accelerators, the plan's first included, among which a changed question is searched again."""
FACTORS = {"users": (0.5, 2.0, 4.0), "context": (2.0, 4.0), "tpot": (0.5, 2.0)}


@dataclass(frozen=True, slots=True)
class Flip:
    """One change of the question, and what it does to the answer."""

    what: str
    """`price`, `users`, `context` or `tpot`."""
    factor: float
    """New value over old."""
    changes: bool
    """Accelerator or rung of the ladder become others."""
    sentence: str


def price_flip(plan: Plan) -> Flip | None:
    """The price change at which the cheapest other accelerator draws level; None where there is none to compare."""
    best = plan.best
    if best is None or best.cost is None:
        return None
    mine = {part.name for part in best.accelerators}
    # A rival that shares a part with the plan's first gets cheaper, or dearer, together with it.
    others = [d for d in plan.designs if d.cost is not None and not d.mixed and d.hardware not in mine]
    rival = min(others, key=_dollars, default=None)
    if rival is None:
        return None
    ratio = _dollars(rival) / _dollars(best)
    return Flip("price", ratio, ratio < 1, _price_sentence(plan, best, rival, ratio))


def _price_sentence(plan: Plan, best: Design, rival: Design, ratio: float) -> str:
    mine, other = best.hardware, rival.hardware
    if ratio < 1:
        groups = {id(entry.design): entry.group for entry in plan.ranked}
        tied = groups[id(best)] == groups[id(rival)] or too_close(best, rival)
        verdict = "too close to call" if tied else "cheaper"
        return (
            f"{other} ({plural(rival.devices, 'device')}) is estimated {1 - ratio:.0%} below {mine}, {verdict}; "
            f"{mine} draws level if its price falls by {1 - ratio:.0%}."
        )
    rises = f"that of {mine} rises" if not best.mixed else f"those of {mine} rise"
    return f"{other} draws level if its price falls by {1 - 1 / ratio:.0%} or {rises} by {ratio - 1:.0%}."


def _dollars(design: Design) -> float:
    return design.cost.per_million_output.mean if design.cost is not None else float("inf")


def traffic_flips(plan: Plan) -> tuple[Flip, ...]:
    """The answers to changed questions: fewer and more users, shorter and longer contexts, other TPOT targets."""
    if plan.best is None:
        return ()
    found = []
    for what, factors in FACTORS.items():
        for factor in factors:
            flip = _flip(plan, plan.best, what, factor)
            if flip is not None:
                found.append(flip)
    return tuple(found)


def _flip(plan: Plan, best: Design, what: str, factor: float) -> Flip | None:
    try:
        question = _changed(plan.question, what, factor)
    except SpecError:
        # Longer than the model's context, say: nothing to search for.
        return None
    if question is None:
        return None
    names = list(dict.fromkeys(part.name for d in plan.designs for part in d.accelerators))[:RIVALS]
    chosen = tuple(a for a in question.accelerators if a.name in names)
    answer = search(replace(question, accelerators=chosen))
    head = _headline(what, factor, question)
    if answer.best is None:
        reason = answer.impossible.what if answer.impossible else "nothing"
        return Flip(what, factor, True, f"{head}: nothing on {', '.join(names)} serves it any more ({reason}).")
    now = answer.best
    changes = (now.hardware, now.rung) != (best.hardware, best.rung)
    return Flip(what, factor, changes, f"{head}: {now.name} ({plural(now.devices, 'device')}).")


def _headline(what: str, factor: float, question: Question) -> str:
    times = f"{factor:g}×"
    if what == "users":
        load = question.workload
        size = f"{load.users:,.0f} users" if load.users is not None else f"{load.rate:,.3g} requests a second"
        return f"{times} the traffic ({size})"
    if what == "context":
        return f"{times} the input ({question.workload.input.mean:,.0f} tokens)"
    assert question.slo.tpot is not None
    return f"a TPOT target of {question.slo.tpot * 1e3:g} ms"


def _changed(question: Question, what: str, factor: float) -> Question | None:
    load = question.workload
    if what == "users":
        users = None if load.users is None else max(1.0, load.users * factor)
        rate = None if load.rate is None else load.rate * factor
        return replace(question, workload=replace(load, users=users, rate=rate))
    if what == "context":
        longest = None if load.input.maximum is None else load.input.maximum * factor
        lengths = Lengths(load.input.mean * factor, load.input.std * factor, longest)
        changed: Workload = replace(load, input=lengths)
        return replace(question, workload=changed)
    if question.slo.tpot is None:
        return None
    slo: Slo = replace(question.slo, tpot=question.slo.tpot * factor)
    return replace(question, slo=slo)
