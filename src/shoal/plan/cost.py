"""What a design costs and draws, and which designs are too close to call.

A question asks for so many tokens a second at its peak: that demand, not what a design could do, is what its
dollars are divided by. The interval of a cost is that of the devices needed when everything is as quick, or as
slow, as the predictions' intervals allow.
"""

import math
from collections.abc import Iterable, Sequence

from shoal.plan.calc import cost_per_million
from shoal.plan.designs import Cost, Design, Energy, Ranked
from shoal.plan.question import Question
from shoal.plan.step_time import Estimate
from shoal.specs.hardware import Accelerator

PRICE_SPREAD = 0.03
"""Published prices are rounded to about this share: no cost is known better."""


def demand(question: Question, achieved: float) -> float:
    """Output tokens a second asked for at the peak.

    From the rate of requests where it is given; else from users who each get exactly the targets; else, without a
    target for TPOT, what the design achieves (`achieved`).
    """
    load, slo = question.workload, question.slo
    if load.rate is not None:
        return load.rate * load.output.mean
    if slo.tpot is None or load.users is None:
        return achieved
    seconds = (slo.ttft or 0.0) + max(load.output.mean - 1.0, 0.0) * slo.tpot
    return min(achieved, load.users * load.output.mean / seconds) if seconds > 0 else achieved


def bill(
    question: Question, parts: Sequence[tuple[Accelerator, int]], asked: float, needed: tuple[int, int, int],
    at_capacity: float,
) -> tuple[Cost | None, Energy | None]:  # fmt: skip
    """Cost and energy of devices, where price and power of all of them are known.

    Args:
        parts: (accelerator, devices) of each pool, spares included.
        asked: output tokens a second at the peak, see `demand`.
        needed: devices without spares at the quick end, as estimated, and at the slow end.
        at_capacity: output tokens a second that the devices deliver when full.
    """
    devices, load = sum(count for _, count in parts), question.workload
    watts = total([(accelerator.watts, count) for accelerator, count in parts])
    dollars = total([(accelerator.price(question.basis), count) for accelerator, count in parts])
    energy = None
    if watts is not None:
        energy = Energy(watts / 1e3, watts / (asked / load.peak_to_mean * 3600) * 1e6)
    if dollars is None:
        return None, energy
    price = dollars / devices
    million = cost_per_million(devices, price, asked, 1.0 / load.peak_to_mean)
    quick, mean, slow = needed
    low = million * min(quick / mean, 1.0 - PRICE_SPREAD)
    high = million * max(slow / mean, 1.0 + PRICE_SPREAD)
    share = load.output.mean / (load.input.mean + load.output.mean)
    cost = Cost(
        per_hour=dollars,
        per_million_output=Estimate(million, low, high),
        per_million_tokens=Estimate(million * share, low * share, high * share),
        at_capacity=cost_per_million(devices, price, at_capacity),
    )
    return cost, energy


def total(each: Sequence[tuple[float | None, int]]) -> float | None:
    """The sum over devices; None where it is not known of one."""
    known = [value * count for value, count in each if value is not None]
    return sum(known) if len(known) == len(each) else None


def _key(design: Design) -> float:
    """What designs are ranked by: dollars a million tokens, or devices where there is no price."""
    return design.cost.per_million_output.mean if design.cost else float(design.devices)


def _low_high(design: Design) -> tuple[float, float]:
    if design.cost is not None:
        return design.cost.per_million_output.low, design.cost.per_million_output.high
    return float(min(design.needed[0], design.devices)), float(max(design.needed[2], design.devices))


def _order(design: Design) -> tuple[object, ...]:
    """Cheapest first. At one price: those that surely meet the targets, then fewest devices, the lowest rung, the
    least converted.

    Price comes before all else so that a larger question never gets a cheaper answer: the cheapest of designs of
    which none gets cheaper. Any preference that may outweigh a price would break that.
    """
    weights = design.weights
    lossy = 0 if weights.native else 1 if weights.bits >= 6 else 2
    narrow_cache = design.kv_dtype not in ("bf16", "fp32")
    price = float(f"{_key(design):.9g}")
    return (price, not design.sure, design.devices, design.rung, lossy, narrow_cache, design.name)


def too_close(one: Design, other: Design) -> bool:
    """Whether each one's estimate lies inside the other's interval, so that neither is known to be cheaper."""
    (low, high), (other_low, other_high) = _low_high(one), _low_high(other)
    return low <= _key(other) <= high and other_low <= _key(one) <= other_high


def rank(designs: Iterable[Design]) -> tuple[Ranked, ...]:
    """Best first, in groups of designs too close to call; those without a price after all others.

    A group holds only designs that are equally sure: one that may miss a target is no tie with one that meets it.
    """
    ranked: list[Ranked] = []
    group = 0
    found = list(designs)
    for pool in ([d for d in found if d.cost is not None], [d for d in found if d.cost is None]):
        lead: Design | None = None
        for design in sorted(pool, key=_order):
            if lead is None or lead.sure != design.sure or not too_close(lead, design):
                lead, group = design, group + 1
            ranked.append(Ranked(group, design))
    return tuple(ranked)


def distinct(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The first `count` that differ in accelerator, devices or rung, one split each, to show variety."""
    seen: set[tuple[str, int, int, bool]] = set()
    chosen: list[Ranked] = []
    for entry in ranked:
        d = entry.design
        key = (d.hardware, 0 if d.split else d.devices, d.rung, d.weights.native)
        if key not in seen:
            seen.add(key)
            chosen.append(entry)
        if len(chosen) == count:
            break
    return chosen


def whole(value: float) -> int:
    """A count that may have come out infinite, kept finite."""
    return int(min(value, 1e9)) if not math.isnan(value) else int(1e9)
