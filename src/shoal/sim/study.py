"""Several simulations for one question: two fleets over seeds, rates up to the highest within objectives."""

from collections.abc import Callable

from shoal.workload.compare import Comparison, Round, Side, ratios
from shoal.workload.summary import Summary
from shoal.workload.sweep import Point, RateSearch, SweepResult, judged


def compare(run: Callable[[Side, int], Summary], rounds: int) -> Comparison:
    """Both sides under the same load in every round; ratios are paired, as `shoal bench compare` pairs them."""
    done = tuple(Round("A", run("A", number), run("B", number)) for number in range(rounds))
    goodput = bool(done) and done[0].a.objectives.any
    return Comparison(done, ratios(done, goodput), any(r.a.partial or r.b.partial for r in done))


def sweep(probe: Callable[[float, int], Summary], search: RateSearch) -> SweepResult:
    """Simulate rates until the search is done."""
    points: list[Point] = []
    evidence = 0.0
    while (rate := search.next_rate()) is not None:
        summary = probe(rate, len(points))
        if summary.backlog is not None:
            evidence = max(evidence, summary.backlog.completed)
        point = judged(rate, summary, evidence)
        points.append(point)
        search.record(rate, point.meets)
    partial = any(p.summary.partial for p in points)
    return SweepResult(tuple(points), search.best, search.failing, search.confirmed, partial)
