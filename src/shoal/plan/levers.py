"""What would change an answer most: one change of the question at a time, each searched again and compared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shoal.plan.designs import Design, Plan
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.plan.words import plural, usd
from shoal.specs.errors import SpecError
from shoal.specs.traffic import Lengths

STRONGEST = 3
PREFIX_SHARES = (0.5, 0.8)
NOTABLE = 0.95
"""Levers that leave more than this share of the devices, or dollars, are not worth a line."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One change of a question."""

    change: str
    """What is done, as a noun phrase: "a TPOT target of 100 ms instead of 50"."""
    question: Question


@dataclass(frozen=True, slots=True)
class Effect:
    """What a lever does to the answer."""

    lever: Lever
    design: Design
    share: float
    """Dollars an hour after over before; devices where there is no price."""
    sentence: str


def prefix_levers(question: Question) -> Iterator[Lever]:
    """Larger shares of the input found in the prefix cache."""
    load = question.workload
    for share in PREFIX_SHARES:
        if share > load.prefix_hit + 0.05:
            now = f"instead of {load.prefix_hit:.0%}"
            yield Lever(
                f"{share:.0%} of the input found in the prefix cache {now}",
                replace(question, workload=replace(load, prefix_hit=share)),
            )


def levers(question: Question) -> Iterator[Lever]:
    """Changes that ease a question: reuse, lengths, targets, formats, headroom. Those that do not apply are left
    out."""
    load, slo = question.workload, question.slo
    yield from list(prefix_levers(question))[-1:]
    half_in, half_out = _half(load.input), _half(load.output)
    yield Lever(
        f"half the input ({half_in.mean:,.0f} tokens)", replace(question, workload=replace(load, input=half_in))
    )
    yield Lever(
        f"half the output ({half_out.mean:,.0f} tokens)", replace(question, workload=replace(load, output=half_out))
    )
    if slo.tpot is not None:
        eased = f"a TPOT target of {slo.tpot * 2e3:g} ms instead of {slo.tpot * 1e3:g}"
        yield Lever(eased, replace(question, slo=replace(slo, tpot=slo.tpot * 2)))
    if slo.ttft is not None:
        eased = f"a TTFT target of {slo.ttft * 2:g} s instead of {slo.ttft:g}"
        yield Lever(eased, replace(question, slo=replace(slo, ttft=slo.ttft * 2)))
    if slo.percentile > 50:
        eased = f"targets for the median request instead of p{slo.percentile:g}"
        yield Lever(eased, replace(question, slo=replace(slo, percentile=50.0)))
    if question.weights or question.kv_dtypes:
        yield Lever("any format of weights and cache", replace(question, weights=(), kv_dtypes=()))
    if question.split == "never":
        yield Lever("prefill and decode split", replace(question, split="auto"))
    if question.headroom > 0.05:
        yield Lever(f"no headroom instead of {question.headroom:.0%}", replace(question, headroom=0.0))
    if question.spares:
        yield Lever(f"no spare replica instead of {question.spares}", replace(question, spares=0))


def _half(lengths: Lengths) -> Lengths:
    return Lengths(max(lengths.mean / 2, 1.0), lengths.std / 2, lengths.maximum)


def effects(plan: Plan, count: int = STRONGEST) -> tuple[Effect, ...]:
    """The strongest levers of a plan on its first accelerator, strongest first; empty where nothing serves."""
    best = plan.best
    if best is None:
        return ()
    found = [effect for lever in levers(plan.question) if (effect := _effect(best, lever)) is not None]
    found.sort(key=lambda effect: effect.share)
    return tuple(effect for effect in found if effect.share <= NOTABLE)[:count]


def prefix_lines(plan: Plan) -> tuple[str, ...]:
    """What reuse of prefixes is assumed, and what more of it would make of the answer."""
    best, hit = plan.best, plan.question.workload.prefix_hit
    if best is None:
        return ()
    assumed = f"Prefix cache: {hit:.0%} of the input is assumed to be found in it"
    parts = [
        f"{effect.lever.question.workload.prefix_hit:.0%} would make it {plural(effect.design.devices, 'device')}"
        for lever in prefix_levers(plan.question)
        if (effect := _effect(best, lever)) is not None
    ]
    now = f" ({plural(best.devices, 'device')})"
    return (f"{assumed}{now}{'; ' + ', '.join(parts) if parts else ''}.",)


def _effect(best: Design, lever: Lever) -> Effect | None:
    after = searched(replace(lever.question, accelerators=best.accelerators))
    if after is None or after.best is None:
        return None
    design = after.best
    if best.cost is not None and design.cost is not None:
        share = design.cost.per_hour / best.cost.per_hour
        money = f", {usd(design.cost.per_hour)} an hour instead of {usd(best.cost.per_hour)}"
    else:
        share, money = design.devices / best.devices, ""
    sentence = (
        f"{lever.change[0].upper()}{lever.change[1:]}: {plural(design.devices, 'device')} instead of "
        f"{best.devices:,}{money} ({design.name})."
    )
    return Effect(lever, design, share, sentence)


def searched(question: Question, run: Callable[[Question], Plan] = search) -> Plan | None:
    """The plan of a changed question; None where the change makes no sense (a context past the model's, say)."""
    try:
        return run(question)
    except SpecError:
        return None
