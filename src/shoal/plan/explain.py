"""Why this plan: the ladder, what binds, what would flip it, what was rejected, which wire carries what.

explanation = explain(plan)
print("\\n".join(explanation.lines()))
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.plan.alternatives import alternative_lines
from shoal.plan.breakdown import NAMES, Breakdown, breakdown
from shoal.plan.calc import devices_needed
from shoal.plan.cautions import Caution, cautions, footprint
from shoal.plan.designs import Design, Plan, Rejection
from shoal.plan.flips import Flip, price_flip, traffic_flips
from shoal.plan.handing import hand_off_sentence, mixed_sentence, split_against
from shoal.plan.ladder import Rung, ladder, published_precision, with_split, without_split
from shoal.plan.levers import Effect, effects, prefix_lines
from shoal.plan.paying import paying_lines
from shoal.plan.per_part import part_lines, sure_line
from shoal.plan.provenance import Sourced, sourced
from shoal.plan.question import Question
from shoal.plan.sequences import design_memory
from shoal.plan.topology import LinkUse, link_uses
from shoal.plan.words import milliseconds, per_million, plural, seconds, usd
from shoal.specs.units import duration


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer in sentences. Empty parts do not apply."""

    summary: tuple[str, ...]
    ladder: tuple[Rung, ...]
    binding: tuple[str, ...]
    terms: Breakdown | None
    flips: tuple[Flip, ...]
    rejected: tuple[str, ...]
    links: tuple[LinkUse, ...]
    splitting: tuple[str, ...]
    cautions: tuple[Caution, ...]
    figures: tuple[Sourced, ...]
    levers: tuple[Effect, ...] = ()
    """The strongest changes of the question, strongest first."""
    prefix: tuple[str, ...] = ()
    """What reuse of prefixes is assumed, and what more would change."""
    alternatives: tuple[str, ...] = ()
    """Formats side by side, chunked prefill instead of a split, speculation."""
    parts: tuple[str, ...] = ()
    """The other accelerators of the question, a sentence each."""
    paying: tuple[str, ...] = ()
    """What owning, renting and buying tokens come to."""

    def lines(self) -> Iterator[str]:
        """Everything as plain text, a heading before each part."""
        yield from self.summary
        yield from self.prefix
        parts: list[tuple[str, list[str]]] = [
            ("The ladder", [f"{r.number}. {r.name}: {r.verdict}. {r.reason}" for r in self.ladder]),
            ("What binds", list(self.binding)),
            ("What would change this answer most", [effect.sentence for effect in self.levers]),
            ("Owning, renting, buying tokens", list(self.paying)),
            ("The other accelerators", list(self.parts)),
            ("What would change it", [flip.sentence for flip in self.flips]),
            ("Traffic and links", [use.sentence for use in self.links]),
            ("Splitting prefill from decode", list(self.splitting)),
            ("What else would do", list(self.alternatives)),
            ("Rejected", list(self.rejected)),
            ("Mind", [f"{caution.topic}: {caution.text}" for caution in self.cautions]),
        ]
        for heading, lines in parts:
            if lines:
                yield ""
                yield heading
                yield from (f"  {line}" for line in lines)


def explain(plan: Plan, sensitivity: bool = True) -> Explanation:
    """Explain a plan's first design, or why there is none.

    Args:
        sensitivity: search again for changed traffic and targets (a few further searches).
    """
    rejected = tuple(_rejected(rejection) for rejection in plan.rejections)
    best = plan.best
    if best is None:
        message = plan.impossible.message if plan.impossible else "Nothing serves this."
        return Explanation((message,), (), (), None, (), rejected, (), (), (), (), parts=part_lines(plan))
    question = plan.question
    terms = breakdown(question, best)
    flips = [flip for flip in (price_flip(plan),) if flip is not None]
    if sensitivity:
        flips += traffic_flips(plan)
    return Explanation(
        summary=(*_summary(plan, best), *([surely] if (surely := sure_line(plan)) else [])),
        ladder=ladder(plan),
        binding=tuple(_binding(plan, best, terms)),
        terms=terms,
        flips=tuple(flips),
        rejected=rejected,
        parts=part_lines(plan),
        paying=paying_lines(question, best),
        links=link_uses(question, best),
        splitting=tuple(_splitting(plan, best, terms)),
        cautions=cautions(plan, best),
        figures=sourced(question, best),
        levers=effects(plan) if sensitivity else (),
        alternatives=tuple(alternative_lines(plan)),
        prefix=prefix_lines(plan) if sensitivity else (_prefix_assumed(plan),),
    )


def _prefix_assumed(plan: Plan) -> str:
    return f"Prefix cache: {plan.question.workload.prefix_hit:.0%} of the input is assumed to be found in it."


def _summary(plan: Plan, best: Design) -> Iterator[str]:
    question, load = plan.question, plan.question.workload
    asked = f"{load.users:,.0f} users at once" if load.users is not None else f"{load.rate:,.3g} requests a second"
    yield (
        f"Serve {question.model.name} to {asked} on {plural(best.devices, 'device')}: {best.name}."
        if best.devices > 1
        else f"Serve {question.model.name} to {asked} on one {best.accelerator.name}: {best.name}."
    )
    share = f" at the {question.slo.percentile:g}th percentile" if question.slo.percentile != 50 else ""
    yield (
        f"Expect {seconds(best.ttft)} to the first token and {milliseconds(best.tpot)} a token{share}, "
        f"{best.per_user:.0f} tokens a second for each user, {best.tokens_per_second.mean:,.0f} in all "
        f"({best.per_device:,.0f} a device)."
    )
    yield _cost_line(plan, best)
    tied = [entry for entry in plan.ranked if entry.group == plan.ranked[0].group]
    names = list(dict.fromkeys(entry.design.hardware for entry in tied))
    if len(tied) > 1:
        simplest = min((e.design for e in tied), key=lambda d: (d.rung, d.devices))
        tail = "" if simplest.rung >= best.rung else f"; the simplest of them is {simplest.name}"
        where = f"{', '.join(names[:6])}{' and others' if len(names) > 6 else ''}"
        yield (
            f"{len(tied):,} designs on {where} are too close to call: the intervals overlap, and the cheapest as "
            f"estimated comes first{tail}."
        )
    published = published_precision(plan)
    if published is not None:
        yield (
            f"Without converting weights: {published.name}, {plural(published.devices, 'device')}, "
            f"{per_million(published)}."
        )
    single = without_split(plan)
    if single is not None:
        yield f"Without a split: {single.name}, {plural(single.devices, 'device')}, {per_million(single)}."


def _cost_line(plan: Plan, best: Design) -> str:
    power = ""
    if best.energy is not None:
        power = (
            f" At most {best.energy.kilowatts:,.3g} kW, {best.energy.watt_hours_per_million:,.0f} Wh a million "
            "output "
            "tokens (devices at rated power, hosts and cooling left out)."
        )
    if best.cost is None:
        basis = plan.question.basis
        unknown = [part.name for part in best.accelerators if part.price(basis) is None]
        return f"No {basis} price of {' and '.join(unknown)} is known: ranked by devices.{power}"
    peak = plan.question.workload.peak_to_mean
    mean = f", sold at the mean of a peak {peak:g} times as high" if peak > 1 else ""
    return (
        f"Cost: {usd(best.cost.per_hour)} an hour {plan.question.basis}, {per_million(best)}{mean} at the "
        "demand of "
        f"{best.demand:,.0f} tokens a second; {usd(best.cost.at_capacity)} if all that capacity were used.{power}"
    )


def _binding(plan: Plan, best: Design, terms: Breakdown) -> Iterator[str]:
    question = plan.question
    shares = ", ".join(f"{NAMES[part.name]} {part.share:.0%}" for part in terms.tpot[:4])
    yield f"A token's {best.tpot.mean * 1e3:.3g} ms: {shares}. Largest: {NAMES[terms.binding.name]}."
    prompt = ", ".join(f"{NAMES[part.name]} {part.share:.0%}" for part in terms.prefill[:3])
    yield f"A prompt's {duration(terms.prefill_seconds)} of prefill alone: {prompt}."
    reasons = {
        "memory": f"its KV memory, {best.memory_batch:,} requests of {question.held_tokens:,.0f} tokens",
        "tpot": "the TPOT target",
        "ttft": "the TTFT target",
        "engine": "the engine's own limit on sequences in a step",
        "traffic": f"the traffic alone: its memory would hold {best.memory_batch:,}",
    }
    if best.split:
        # A decode worker's capacity was not measured by itself: only its share of the peak is known.
        yield (
            f"At the peak a decode worker has {plural(math.ceil(best.load), 'request')}; its KV memory holds "
            f"{best.memory_batch:,} of {question.held_tokens:,.0f} tokens."
        )
    else:
        yield (
            f"A replica takes {plural(best.capacity, 'request')} at once, bounded by {reasons[best.limit]}; at the "
            f"peak it has {best.load:,.0f}."
        )
    held = footprint(question, best)
    layout = design_memory(question, best).worst
    alone = devices_needed(held.weights + held.cache, best.accelerator.memory_bytes)
    if alone.count < best.devices and not best.mixed:
        yield (
            f"Weights and cache alone would take {plural(alone.count, 'device')} with a fifth kept free; the other "
            f"{best.devices - alone.count:,} are for {_what_sets_the_rest(question)}."
        )
    yield (
        f"Memory: weights {held.weights / 1e9:,.1f} GB once, cache {held.cache / 1e9:,.1f} GB for the peak; the "
        "fullest "
        f"device has {layout.weights / 1e9:,.1f} GB of weights and {layout.kv_room / 1e9:,.1f} GB left for cache, "
        f"with the engine told to run at most {plural(best.sequences, 'sequence')}."
    )


def _what_sets_the_rest(question: Question) -> str:
    reasons = ["time"]
    reasons += [f"{question.headroom:.0%} headroom"] if question.headroom else []
    reasons += [plural(question.spares, "spare replica")] if question.spares else []
    return " and ".join([", ".join(reasons[:-1]), reasons[-1]] if len(reasons) > 1 else reasons)


def _splitting(plan: Plan, best: Design, terms: Breakdown) -> Iterator[str]:
    question, domain = plan.question, best.accelerator.domain
    if best.accelerator.nic is None and domain < 2:
        yield "There is no link that a hand-off could cross."
        return
    yield hand_off_sentence(question, best)
    if best.mixed:
        yield mixed_sentence(plan, best)
        return
    if best.split:
        single = without_split(plan)
        if single is None:
            yield "No design with one pool meets the targets, so the split is needed."
        else:
            yield split_against(best, single)
        return
    waits = next((part for part in terms.tpot if part.name == "interference"), None)
    if waits is not None:
        yield f"In one pool, prefills of others take {waits.share:.0%} of a token's time."
    rival = with_split(plan)
    if question.split == "never":
        yield "A split was ruled out by the question."
    elif rival is None:
        yield "No split meets the targets on this accelerator, or it would have no link to hand over by."
    else:
        fewer = rival.devices < best.devices
        verdict = "fewer, but by less than two pools cost to run, or than the predictions can be wrong"
        verdict = verdict if fewer else "no fewer"
        yield f"A split would take {plural(rival.devices, 'device')} ({rival.name}): {verdict}. Measure first."
    if question.slo.ttft is None and question.slo.tpot is None:
        yield "Without latency targets there is nothing that a split could protect."


def _rejected(rejection: Rejection) -> str:
    return (
        f"{plural(rejection.count, 'layout')}, {rejection.reason}. Nearest: {rejection.example}: "
        f"{rejection.detail}."
    )
