"""A simulation as a report: the tables and plots of a benchmark, intervals of its own, replicas, and reasons."""

from shoal.sim.figures import Figures, Latency
from shoal.sim.reasons import Why, reasons_section
from shoal.sim.timeline import timeline_section
from shoal.sim.world import Simulated
from shoal.workload.report.classes import class_table
from shoal.workload.report.document import Section, Table, count_table, milliseconds
from shoal.workload.report.plots import plots
from shoal.workload.summary import DEFINITIONS, Summary

DRAWN = "95 % interval of the requests drawn, by a block bootstrap"
WIDENED = "95 % interval of the requests drawn, widened by the 90 % interval of step times"


def meanings(intervals: str, reasons: bool) -> tuple[tuple[str, str], ...]:
    """What the figures mean.

    Args:
        intervals: `DRAWN` or `WIDENED`.
        reasons: the report says why requests were slow.
    """
    shared = tuple((n, text) for n, text in DEFINITIONS if n not in ("[low, high]", "schedule delay", "ITL"))
    own = (("ITL", "times between consecutive tokens, of all requests"), ("[low, high]", intervals))
    why = "where a request's time went; its main cause is a fault or a preemption, else the longest wait"
    return (*shared, *own, *([("why", why)] if reasons else []))


def figures_table(found: Figures) -> Table:
    """TTFT, TPOT, ITL and E2E with all the uncertainty that is known."""
    rows = [
        (name, *(milliseconds(e) for e in (latency.mean, latency.p50, latency.p90, latency.p99)))
        for name, latency in _named(found)
        if latency is not None
    ]
    return Table(("ms", "mean", "p50", "p90", "p99"), tuple(rows))


def _named(found: Figures) -> tuple[tuple[str, Latency | None], ...]:
    return ("TTFT", found.ttft), ("TPOT", found.tpot), ("ITL", found.itl), ("E2E", found.e2e)


def run_section(
    simulated: Simulated,
    summary: Summary,
    found: Figures,
    title: str,
    warnings: tuple[str, ...] = (),
    seed: int = 0,
) -> Section:
    """What one simulation came to."""
    classes = class_table(simulated.result, summary.objectives, seed)
    return Section(
        title,
        summary.load,
        (count_table(summary), figures_table(found), *([classes] if classes else [])),
        plots(simulated.result, summary.objectives),
        warnings,
        summary.notes,
    )


def detail_sections(simulated: Simulated, summary: Summary, slow: list[Why]) -> tuple[Section, ...]:
    """Replicas over time, and why requests were slow."""
    replicas = timeline_section(simulated)
    reasons = reasons_section(slow, summary.objectives)
    return (replicas, reasons) if reasons is not None else (replicas,)
