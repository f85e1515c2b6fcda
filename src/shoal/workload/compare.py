"""Two endpoints or configurations side by side in one run: short rounds in the order AB BA AB …, ratios by pair.

What drifts slowly (heat, neighbours on the machine) hits both sides of a round alike and leaves their ratio alone.
Both sides get prompts of the same lengths at the same times in a round; the contents differ, because both may stand
before the same cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.workload.stats import Distribution, Estimate, ratio_estimate
from shoal.workload.summary import Summary

Side = Literal["A", "B"]
Verdict = Literal["better", "worse", "too close to call"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run that two sides are compared by."""

    name: str
    unit: str
    higher_is_better: bool
    read: Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A of one figure: the geometric mean over rounds, with Student's 95 % interval."""

    metric: str
    unit: str
    a: float
    """Mean over rounds."""
    b: float
    ratio: Estimate
    verdict: Verdict
    """How B is against A: too close where the interval holds 1, or where there are fewer than two rounds."""
    rounds: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round: both sides under the same load."""

    first: Side
    a: Summary
    b: Summary


@dataclass(frozen=True, slots=True)
class Comparison:
    rounds: tuple[Round, ...]
    ratios: tuple[Ratio, ...]
    partial: bool


def _at(distribution: Distribution | None, level: float) -> float | None:
    return None if distribution is None else distribution.at(level).value


METRICS: tuple[Metric, ...] = (
    Metric("output tokens/s", "1/s", True, lambda s: s.output_rate.value or None),
    Metric("TTFT p50", "s", False, lambda s: _at(s.ttft, 0.5)),
    Metric("TTFT p99", "s", False, lambda s: _at(s.ttft, 0.99)),
    Metric("TPOT p50", "s", False, lambda s: _at(s.tpot, 0.5)),
    Metric("ITL p99", "s", False, lambda s: _at(s.itl, 0.99)),
    Metric("E2E p50", "s", False, lambda s: _at(s.e2e, 0.5)),
)
GOODPUT = Metric("goodput", "1/s", True, lambda s: s.goodput.value or None)


def ratios(rounds: Sequence[Round], with_goodput: bool) -> tuple[Ratio, ...]:
    """B over A for every metric that both sides have in at least one round."""
    found = []
    for metric in (*METRICS, GOODPUT) if with_goodput else METRICS:
        pairs = [(a, b) for r in rounds if (a := metric.read(r.a)) and (b := metric.read(r.b))]
        if not pairs:
            continue
        estimate = ratio_estimate([b / a for a, b in pairs])
        a, b = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        verdict = _verdict(estimate, metric.higher_is_better)
        found.append(Ratio(metric.name, metric.unit, a, b, estimate, verdict, len(pairs)))
    return tuple(found)


def _verdict(ratio: Estimate, higher_is_better: bool) -> Verdict:
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return "too close to call"
    return "better" if (ratio.low > 1) == higher_is_better else "worse"
