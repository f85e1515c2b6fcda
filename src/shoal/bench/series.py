"""Series of runs against endpoints: the rounds of a comparison, the rates of a sweep."""

from collections.abc import Awaitable, Callable

from shoal.workload.compare import Comparison, Round, Side, ratios
from shoal.workload.summary import Summary
from shoal.workload.sweep import Point, RateSearch, SweepResult, judged

RunSide = Callable[[Side, int], Awaitable[Summary]]


async def compare(run: RunSide, rounds: int, stopped: Callable[[], bool] = lambda: False) -> Comparison:
    """Run the rounds, turning the order each time; whole rounds only are judged if it is stopped."""
    done: list[Round] = []
    for number in range(rounds):
        first, second = ("A", "B") if number % 2 == 0 else ("B", "A")
        sides: dict[str, Summary] = {}
        for side in (first, second):
            sides[side] = await run("A" if side == "A" else "B", number)
            if sides[side].partial or stopped():
                break
        if len(sides) < 2 or any(s.partial for s in sides.values()):
            break
        done.append(Round("A" if first == "A" else "B", sides["A"], sides["B"]))
    goodput = bool(done) and done[0].a.objectives.any
    return Comparison(tuple(done), ratios(done, goodput), len(done) < rounds)


Probe = Callable[[float, int], Awaitable[Summary]]
"""Runs one rate; the number keeps the prompts of different points apart."""


async def sweep(
    probe: Probe, search: RateSearch, stopped: Callable[[], bool] = lambda: False, evidence: float = 0.0
) -> SweepResult:
    """Run rates until the search is done; what there is, marked partial, if it is stopped.

    Args:
        evidence: requests per second that the server is known to complete.
    """
    points: list[Point] = []
    while not stopped() and (rate := search.next_rate()) is not None:
        summary = await probe(rate, len(points))
        if summary.partial:
            break
        if summary.backlog is not None:
            evidence = max(evidence, summary.backlog.completed)
        point = judged(rate, summary, evidence)
        points.append(point)
        search.record(rate, point.meets)
    return SweepResult(tuple(points), search.best, search.failing, search.confirmed, stopped())
