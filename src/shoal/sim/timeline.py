"""How replicas stood over time, as plots: sequences running and waiting, cache in use, hit rate."""

from collections.abc import Callable, Sequence

from shoal.sim.samples import Sample
from shoal.sim.world import Simulated
from shoal.workload.report.document import Plot, Section, Series, Table
from shoal.workload.run import RunResult

MOST_LINES = 8
"""Replicas that are drawn one by one; of more, the mean and the extremes."""
_WINDOW = 10
"""Samples over which a hit rate is taken."""


def timeline_section(simulated: Simulated) -> Section:
    """A table of the replicas and their plots."""
    samples, result, busy = simulated.samples, simulated.result, simulated.busy
    by_replica: dict[str, list[Sample]] = {name: [] for name, _ in busy}
    for sample in samples:
        by_replica.setdefault(sample.replica, []).append(sample)
    drawn = (
        _plot("Requests running", "requests", by_replica, lambda s: float(s.running)),
        _plot("Requests waiting at a replica", "requests", by_replica, lambda s: float(s.waiting)),
        _plot("Cache in use", "share of blocks", by_replica, lambda s: s.kv_usage),
        _hits(by_replica),
        _queued(samples),
    )
    return Section(
        "Replicas",
        _events(simulated),
        tables=(_table(by_replica, result, busy),),
        plots=tuple(p for p in drawn if _tells(p)),
    )


def _tells(plot: Plot) -> bool:
    """Something happened: not all of it is 0."""
    return any(value for series in plot.series for _, value in series.points)


def _events(simulated: Simulated) -> str:
    counts = (
        ("crash", "crashes", simulated.crashes),
        ("hang", "hangs", simulated.hangs),
        ("ejection", "ejections", simulated.ejections),
        ("preemption", "preemptions", simulated.preemptions),
    )
    happened = ", ".join(f"{count:,} {one if count == 1 else more}" for one, more, count in counts if count)
    return f"{happened}." if happened else ""


def _table(by_replica: dict[str, list[Sample]], result: RunResult, busy: Sequence[tuple[str, float]]) -> Table:
    counted: dict[str, int] = {}
    for record in result.records:
        if record.replica is not None:
            counted[record.replica] = counted.get(record.replica, 0) + 1
    rows = []
    for name, share in busy[:_ROWS]:
        samples = by_replica.get(name, [])
        last = samples[-1] if samples else None
        hit = last.hit_tokens / last.queried_tokens if last is not None and last.queried_tokens else None
        rows.append(
            (
                name,
                f"{counted.get(name, 0):,}",
                f"{share:.0%}",
                f"{max((s.running for s in samples), default=0):,}",
                f"{max((s.waiting for s in samples), default=0):,}",
                f"{max((s.kv_usage for s in samples), default=0.0):.0%}",
                "–" if hit is None else f"{hit:.1%}",
            )
        )
    title = "" if len(busy) <= _ROWS else f"The first {_ROWS} of {len(busy):,}"
    return Table(("replica", "requests", "busy", "running ≤", "waiting ≤", "cache ≤", "hits"), tuple(rows), title)


_ROWS = 16


def _plot(title: str, unit: str, by_replica: dict[str, list[Sample]], value: Callable[[Sample], float]) -> Plot:
    lines = {name: [(s.time, value(s)) for s in samples] for name, samples in by_replica.items() if samples}
    return Plot(title, "s", unit, _series(lines))


def _series(lines: dict[str, list[tuple[float, float]]]) -> tuple[Series, ...]:
    if len(lines) <= MOST_LINES:
        return tuple(Series(name, tuple(points)) for name, points in lines.items())
    at: dict[float, list[float]] = {}
    for points in lines.values():
        for time, value in points:
            at.setdefault(time, []).append(value)
    times = sorted(at)
    return (
        Series("most", tuple((t, max(at[t])) for t in times)),
        Series("mean", tuple((t, sum(at[t]) / len(at[t])) for t in times)),
        Series("least", tuple((t, min(at[t])) for t in times)),
    )


def _hits(by_replica: dict[str, list[Sample]]) -> Plot:
    lines = {}
    for name, samples in by_replica.items():
        points = []
        for before, after in zip(samples, samples[_WINDOW:], strict=False):
            queried = after.queried_tokens - before.queried_tokens
            if queried > 0:
                points.append((after.time, (after.hit_tokens - before.hit_tokens) / queried))
        if points:
            lines[name] = points
    return Plot("Prefix cache hits", "s", "share of prompt tokens", _series(lines))


def _queued(samples: Sequence[Sample]) -> Plot:
    waiting = {s.time: float(s.queued) for s in samples}
    return Plot("Requests queued at the gateway", "s", "requests", (Series("", tuple(sorted(waiting.items()))),))
