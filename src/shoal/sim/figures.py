"""The figures of a simulation with intervals: of the requests drawn, and of how well step times are known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.sim.world import Simulated
from shoal.workload.stats import Distribution, Estimate, student_975
from shoal.workload.summary import Summary

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds."""

    mean: Estimate
    p50: Estimate
    p90: Estimate
    p99: Estimate


@dataclass(frozen=True, slots=True)
class Figures:
    """What one simulation comes to; None: nothing was answered, or nothing had a second token."""

    requests: int
    """Measured ones."""
    ok: int
    simulated_seconds: float
    goodput: Estimate
    """Answers per second that met all objectives."""
    completed: Estimate
    """Answers per second."""
    output: Estimate
    """Output tokens per second."""
    hit_rate: Estimate | None
    """Share of prompt tokens whose KV was reused."""
    ttft: Latency | None
    tpot: Latency | None
    e2e: Latency | None
    itl: Latency | None
    """Between tokens, of all requests together; `mean` is that of TPOT's."""


def figures(summary: Summary, simulated: Simulated) -> Figures:
    """The figures of one run, with the intervals of its requests."""
    hit = summary.hit_rate
    return Figures(
        requests=summary.requests,
        ok=summary.requests - summary.failed,
        simulated_seconds=simulated.seconds,
        goodput=summary.goodput,
        completed=Estimate(summary.completed_rate),
        output=summary.output_rate,
        hit_rate=None if hit is None else Estimate(hit),
        ttft=_latency(summary.ttft),
        tpot=_latency(summary.tpot),
        e2e=_latency(summary.e2e),
        itl=_gaps(summary, simulated),
    )


def _latency(d: Distribution | None) -> Latency | None:
    return None if d is None else Latency(d.mean, *(d.at(level) for level in QUANTILES))


def _gaps(summary: Summary, simulated: Simulated) -> Latency | None:
    found = [simulated.gaps.quantile(level) for level in QUANTILES]
    if summary.tpot is None or any(q is None for q in found):
        return None
    return Latency(summary.tpot.mean, *(Estimate(q or 0.0) for q in found))


Read = Callable[[Figures], Estimate | None]
_RATES: tuple[tuple[str, Read], ...] = (
    ("goodput", lambda f: f.goodput),
    ("completed", lambda f: f.completed),
    ("output", lambda f: f.output),
    ("hit_rate", lambda f: f.hit_rate),
)
_LATENCIES: tuple[tuple[str, Callable[[Figures], Latency | None]], ...] = (
    ("ttft", lambda f: f.ttft),
    ("tpot", lambda f: f.tpot),
    ("e2e", lambda f: f.e2e),
    ("itl", lambda f: f.itl),
)
_LEVELS = ("mean", "p50", "p90", "p99")


def _rebuilt(base: Figures, change: Callable[[Read, Estimate], Estimate]) -> Figures:
    """The same figures with every estimate changed; `change` is told how to read the same one of other figures."""

    def rate(read: Read) -> Estimate | None:
        value = read(base)
        return None if value is None else change(read, value)

    def latency(of: Callable[[Figures], Latency | None]) -> Latency | None:
        value = of(base)
        if value is None:
            return None

        def reader(level: str) -> Read:
            return lambda f: None if (found := of(f)) is None else getattr(found, level)

        return Latency(*(change(reader(level), getattr(value, level)) for level in _LEVELS))

    goodput, completed, output, hit = (rate(read) for _, read in _RATES)
    assert goodput is not None
    assert completed is not None
    assert output is not None
    return Figures(
        base.requests,
        base.ok,
        base.simulated_seconds,
        goodput,
        completed,
        output,
        hit,
        *(latency(of) for _, of in _LATENCIES),
    )


def across(runs: Sequence[Figures]) -> Figures:
    """The mean over runs that differ by their seeds, with Student's 95 % interval; counts and times add up."""
    if len(runs) == 1:
        return runs[0]

    def change(read: Read, value: Estimate) -> Estimate:
        values = [e.value for run in runs if (e := read(run)) is not None]
        mean = math.fsum(values) / len(values)
        if len(values) < 2:
            return Estimate(mean)
        variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
        half = student_975(len(values) - 1) * math.sqrt(variance / len(values))
        return Estimate(mean, max(0.0, mean - half), mean + half)

    made = _rebuilt(runs[0], change)
    return Figures(
        sum(r.requests for r in runs),
        sum(r.ok for r in runs),
        math.fsum(r.simulated_seconds for r in runs),
        *(getattr(made, name) for name, _ in _RATES),
        *(getattr(made, name) for name, _ in _LATENCIES),
    )


def widened(base: Figures, middle: Figures, ends: Sequence[Figures]) -> Figures:
    """Widen the intervals by how far figures move where all steps take as long as the model's interval allows.

    Both are taken as independent: their logarithms' widths add up in squares.

    Args:
        middle: a run with the steps as they are.
        ends: the same run with the quickest steps, and with the slowest.
    """

    def change(read: Read, value: Estimate) -> Estimate:
        centre = read(middle)
        moved = [e.value for f in ends if (e := read(f)) is not None]
        if centre is None or centre.value <= 0 or value.value <= 0:
            return value
        ratios = [m / centre.value for m in moved if m > 0] + [1.0]
        low, high = _width(value.low, value.value, min(ratios)), _width(value.high, value.value, max(ratios))
        return Estimate(value.value, value.value * math.exp(-low), value.value * math.exp(high))

    return _rebuilt(base, change)


def _width(end: float | None, value: float, ratio: float) -> float:
    """How far the logarithm of one end is from that of the value."""
    return math.hypot(0.0 if end is None or end <= 0 else math.log(end / value), math.log(ratio))


def figures_data(found: Figures) -> dict[str, object]:
    """Figures for a program: `ttft` and so on with `mean`, `p50`, `p90`, `p99`, and `low` and `high` of each."""
    rates = {name: _rate(read(found)) for name, read in _RATES}
    intervals = {
        f"{name}_interval": None if e.low is None else [e.low, e.high]
        for name, read in _RATES
        if (e := read(found)) is not None
    }
    latencies = {name: _latency_data(of(found)) for name, of in _LATENCIES}
    counts = {"requests": found.requests, "ok": found.ok, "simulated_seconds": found.simulated_seconds}
    return {**counts, **rates, **intervals, **latencies}


def _rate(value: Estimate | None) -> float | None:
    return None if value is None else value.value


def _latency_data(value: Latency | None) -> dict[str, object] | None:
    if value is None:
        return None
    estimates: dict[str, Estimate] = {level: getattr(value, level) for level in _LEVELS}
    return {
        **{level: e.value for level, e in estimates.items()},
        "low": {level: e.low for level, e in estimates.items()},
        "high": {level: e.high for level, e in estimates.items()},
    }
