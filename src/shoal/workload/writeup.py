"""Sections of a report on sweeps and comparisons."""

from shoal.workload.compare import Comparison
from shoal.workload.report.document import Plot, Section, Series, Table, amount, number, quantile_cell
from shoal.workload.stats import Estimate
from shoal.workload.sweep import Point, SweepResult


def sweep_section(title: str, found: SweepResult, text: str = "") -> Section:
    """The answer, the points it rests on, and goodput over rate."""
    ordered = sorted(found.points, key=lambda p: p.rate)
    rows = tuple(_point(p) for p in ordered)
    header = ("rate/s", "n", "attained %", "goodput/s", "TTFT p99 ms", "TPOT p99 ms", "tokens/s", "")
    good = tuple((p.rate, p.summary.goodput.value) for p in ordered)
    plot = Plot("Goodput", "requested rate, 1/s", "requests/s", (Series("", good),))
    return Section(title, f"{text}. {answer(found)}".lstrip(". "), (Table(header, rows),), (plot,))


def answer(found: SweepResult) -> str:
    """The highest rate that met the objectives, in a sentence."""
    if found.best is None:
        return "No rate that was tried met the objectives." if found.points else "No rate was tried to its end."
    sure = "twice" if found.confirmed else "once, not confirmed"
    above = f"; {number(found.failing)}/s did not" if found.failing is not None else "; no higher rate failed"
    return f"The objectives were met at up to {number(found.best)} requests/s ({sure}){above}."


def _point(p: Point) -> tuple[str, ...]:
    s = p.summary
    share = s.attained
    low = None if share.low is None else share.low * 100
    high = None if share.high is None else share.high * 100
    return (
        number(p.rate),
        str(s.requests),
        amount(Estimate(share.value * 100, low, high)),
        number(s.goodput.value),
        quantile_cell(s.ttft, 0.99),
        quantile_cell(s.tpot, 0.99),
        number(s.output_rate.value),
        _verdict(p),
    )


def _verdict(p: Point) -> str:
    if p.kept_up or p.summary.backlog is None:
        return ("met" if p.meets else "missed") + (", close" if p.close else "")
    if p.summary.backlog.short:
        return "missed: too short a run"
    return f"missed: completed {number(p.summary.backlog.completed)}/s"


IN_TURNS = "in turned order, the same lengths and times for both sides of a round"


def comparison_section(found: Comparison, how: str = IN_TURNS) -> Section:
    """Ratios B/A by figure, with their verdicts.

    Args:
        how: what the rounds have in common, to follow their number.
    """
    rows = tuple(
        (
            r.metric,
            number(r.a * (1e3 if r.unit == "s" else 1)),
            number(r.b * (1e3 if r.unit == "s" else 1)),
            amount(r.ratio),
            "B is " + r.verdict if r.verdict != "too close to call" else r.verdict,
        )
        for r in found.ratios
    )
    text = (
        f"{len(found.rounds)} rounds {how}. "
        "Times in ms; B/A is the geometric mean of the rounds' ratios with Student's 95 % interval. "
        "Each figure is judged by itself: of twenty that are alike, one is called different by chance."
    )
    outputs = {
        "A": [r.a.output_rate.value for r in found.rounds],
        "B": [r.b.output_rate.value for r in found.rounds],
    }
    series = tuple(
        Series(side, tuple((float(i + 1), rate) for i, rate in enumerate(rates))) for side, rates in outputs.items()
    )
    plot = Plot("Output by round", "round", "tokens/s", series)
    return Section("B against A", text, (Table(("", "A", "B", "B/A", ""), rows),), (plot,))
