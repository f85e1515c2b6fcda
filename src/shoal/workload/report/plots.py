"""The plots of one run."""

import numpy as np

from shoal.policy.outcomes import Outcome
from shoal.workload.objectives import Objectives
from shoal.workload.report.document import Plot, Series
from shoal.workload.run import RunResult
from shoal.workload.stats import Floats
from shoal.workload.summary import token_times

_BINS = 40
_STEPS = 200


def plots(result: RunResult, objectives: Objectives) -> tuple[Plot, ...]:
    """Distribution of latencies, TTFT over time, tokens per second over time."""
    return (_latencies(result), _gaps(result), _ttft_over_time(result, objectives), _throughput(result))


def _cumulative(name: str, values: list[float]) -> Series:
    ordered = np.sort(np.asarray(values)) * 1e3
    count = len(ordered)
    # As many steps as a screen can tell apart, the ends always among them.
    places = np.unique(np.linspace(0, count - 1, min(count, _STEPS)).astype(int))
    return Series(name, tuple((float(ordered[i]), (int(i) + 1) / count) for i in places), "steps")


def _latencies(result: RunResult) -> Plot:
    measured = [r for r in result.measured if r.ok]
    series = [
        _cumulative(name, values)
        for name, values in (
            ("TTFT", [r.ttft for r in measured if r.ttft is not None]),
            ("E2E", [r.e2e for r in measured if r.e2e is not None]),
        )
        if values
    ]
    return Plot("Latency, cumulative", "ms", "share of requests", tuple(series))


def _gaps(result: RunResult) -> Plot:
    gaps = [float(g) for r in result.measured if r.ok for g in r.gaps]
    series = (_cumulative("ITL", gaps),) if gaps else ()
    return Plot("Inter-token latency, cumulative", "ms", "share of gaps", series)


def _ttft_over_time(result: RunResult, objectives: Objectives) -> Plot:
    points = [(r.scheduled, r.ttft * 1e3) for r in result.measured if r.ok and r.ttft is not None]
    failed = [(r.scheduled, 0.0) for r in result.measured if r.outcome is not Outcome.OK]
    series = [Series("TTFT", tuple(points), "dots")]
    if failed:
        series.append(Series("failed", tuple(failed), "dots"))
    marks = () if objectives.ttft is None else (("objective", objectives.ttft * 1e3),)
    return Plot("TTFT over time", "scheduled send, s", "ms", tuple(s for s in series if s.points), marks)


def _throughput(result: RunResult) -> Plot:
    times, tokens = token_times(result)
    if not len(times):
        return Plot("Output over time", "s", "tokens/s", ())
    counts, edges = np.histogram(times, bins=_BINS, weights=tokens)
    width = float(edges[1] - edges[0]) or 1.0
    rates: Floats = counts / width
    middles = (edges[:-1] + edges[1:]) / 2
    points = tuple((float(x), float(y)) for x, y in zip(middles, rates, strict=True))
    return Plot("Output over time", "s", "tokens/s", (Series("", points),))
