"""A report as data: sections of tables, figures and plots, and what is needed to run it again."""

from dataclasses import dataclass
from typing import Literal

from shoal.workload.stats import Distribution, Estimate, Quantile
from shoal.workload.summary import Summary

Kind = Literal["line", "steps", "dots"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour."""

    name: str
    points: tuple[tuple[float, float], ...]
    kind: Kind = "line"


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    x: str
    """Label of the axis, with its unit."""
    y: str
    series: tuple[Series, ...]
    marks: tuple[tuple[str, float], ...] = ()
    """Labelled horizontal lines: objectives."""


@dataclass(frozen=True, slots=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    words: bool = False
    """The last column holds words, not figures: it wraps."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report."""

    title: str
    text: str = ""
    """Why it was run, or what follows from it."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    created: str
    """ISO 8601, with its offset."""
    command: str
    """What to type to run it again."""
    facts: tuple[tuple[str, str], ...]
    """Machine, versions, endpoint, seed."""
    sections: tuple[Section, ...]
    definitions: tuple[tuple[str, str], ...]
    partial: bool = False


def milliseconds(estimate: Estimate, few: bool = False) -> str:
    """A time with its interval, in ms."""
    return _with_interval(estimate, 1e3, few)


def quantile_cell(distribution: Distribution | None, level: float) -> str:
    """The quantile of this level in ms; a dash where nothing was measured."""
    return "–" if distribution is None else milliseconds(distribution.at(level))


def _with_interval(e: Estimate, factor: float, few: bool = False) -> str:
    text = ("~" if few else "") + number(e.value * factor)
    if e.low is None or e.high is None:
        return text
    return f"{text} [{number(e.low * factor)}, {number(e.high * factor)}]"


def number(value: float) -> str:
    """Three or four significant digits, no exponent."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.0f}" if size >= 100 else f"{value:.3g}"


def amount(estimate: Estimate, unit: str = "") -> str:
    """A figure with its interval."""
    return f"{_with_interval(estimate, 1.0)}{' ' + unit if unit else ''}"


def latency_table(s: Summary) -> Table:
    """TTFT, TPOT, ITL, E2E and schedule delay: mean and percentiles with intervals, in ms."""
    rows = []
    for name, d in (
        ("TTFT", s.ttft), ("TPOT", s.tpot), ("ITL", s.itl), ("E2E", s.e2e), ("schedule delay", s.schedule_delay)
    ):  # fmt: skip
        if d is not None:
            rows.append((name, str(d.count), milliseconds(d.mean), *(_cell(q) for q in d.quantiles), _top(d)))
    quantiles = next((d.quantiles for d in (s.e2e, s.schedule_delay) if d is not None), ())
    header = ("ms", "n", "mean", *(f"p{q.level * 100:g}" for q in quantiles), "max")
    return Table(header, tuple(rows))


def _cell(q: Quantile) -> str:
    return milliseconds(q.estimate, q.few)


def _top(d: Distribution) -> str:
    return number(d.maximum * 1e3)


def count_table(s: Summary) -> Table:
    """Rates, outcomes, tokens and goodput."""
    rows: list[tuple[str, str]] = [
        ("requests", f"{s.requests} measured in {s.window:.2f} s"),
        ("outcomes", ", ".join(f"{t.count} {t.name}" for t in s.outcomes) or "none"),
    ]
    asked = "all at once" if s.requested_rate is None else f"{number(s.requested_rate)} sessions/s requested"
    sent = "" if s.sent_rate is None else f", {number(s.sent_rate)} sent"
    done = f"{number(s.completed_rate)} requests/s completed"
    rows.append(("rate", f"{done}" if s.concurrency else f"{asked}{sent}, {done}"))
    rows.append(("output", f"{amount(s.output_rate, 'tokens/s')}, {s.output_tokens:,} tokens"))
    cached = "" if s.hit_rate is None else f", {s.hit_rate:.1%} of them cached"
    rows.append(("prompts", f"{number(s.prompt_rate)} tokens/s, {s.prompt_tokens:,} tokens{cached}"))
    if s.objectives.any:
        rows.append(
            ("objectives", f"{s.objectives}, for {s.objectives.share:.3%} of requests".replace(".000%", "%"))
        )
        rows.append(
            ("attained", f"{amount(Estimate(s.attained.value * 100, *_percent(s.attained)))} % of requests")
        )
        rows.append(("goodput", amount(s.goodput, "requests/s")))
        if s.missed:
            rows.append(("missed", ", ".join(f"{m.requests} by {m.objective}" for m in s.missed)))
    if s.replicas:
        rows.append(("replicas", _replicas(s)))
    rows += [("failure", f"{t.count} x {t.name}") for t in s.errors]
    return Table(("", ""), tuple(rows))


_NAMED = 16
"""Replicas whose requests are told one by one."""


def _replicas(s: Summary) -> str:
    if len(s.replicas) <= _NAMED:
        return ", ".join(f"{t.name}: {t.count}" for t in s.replicas)
    counts = [t.count for t in s.replicas]
    return f"{len(counts):,} had requests: {min(counts):,} to {max(counts):,} each"


def _percent(e: Estimate) -> tuple[float | None, float | None]:
    return (None if e.low is None else e.low * 100, None if e.high is None else e.high * 100)
