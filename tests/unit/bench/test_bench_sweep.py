"""The search for the best rate, against servers whose limit is known; and paired comparisons."""

import asyncio
import itertools

import numpy as np
import pytest
from benchkit import Write, record, result, serving, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.bench.checks import warnings
from shoal.bench.run import Runner
from shoal.bench.series import compare, sweep
from shoal.bench.target import Target, TargetOptions
from shoal.specs.errors import SpecError
from shoal.workload.arrivals import arrival_times
from shoal.workload.compare import Side, ratios
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Shape, at_times, made_up
from shoal.workload.objectives import Objectives
from shoal.workload.run import RunOptions, RunResult
from shoal.workload.summary import Summary, summarize
from shoal.workload.sweep import RateSearch, judged

SHAPE = Shape(parse_lengths("8", "input"), parse_lengths("3", "output"))


def summary(good: int, bad: int = 0, *, gap: float = 0.01, partial: bool = False) -> Summary:
    records = [record(i, ttft=0.1, gap=gap) for i in range(good)] + [record(good + i, ttft=9.0) for i in range(bad)]
    return summarize(result(records, partial=partial), Objectives(ttft=1.0, share=0.9))


@given(st.floats(0.05, 500), st.floats(0.05, 500))
@settings(max_examples=100, deadline=None)
def test_the_search_brackets_any_limit_within_reach(limit: float, start: float) -> None:
    search = RateSearch(start, tolerance=0.1, most=60)
    tried: list[float] = []
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        search.record(rate, rate <= limit)
    if limit < start / 64:
        assert search.best is None
    elif limit >= start * 64:
        assert search.best == pytest.approx(start * 64)
    else:
        assert search.best is not None
        assert search.failing is not None
        assert search.best <= limit < search.failing <= search.best * 1.1001
        assert search.confirmed
        # Six doublings or halvings, four halvings of the bracket, one confirmation.
        assert len(tried) <= 13


def test_a_rate_that_fails_when_repeated_is_given_up() -> None:
    search = RateSearch(4.0, tolerance=1.0, most=20)
    for rate, meets in ((4.0, True), (8.0, False), (4.0, False)):
        assert search.next_rate() == rate
        search.record(rate, meets)
    assert (search.best, search.failing) == (None, 4.0)
    assert search.next_rate() == 2.0


def test_the_search_stops_when_its_points_are_used_up() -> None:
    search = RateSearch(1.0, most=2)
    for _ in range(2):
        rate = search.next_rate()
        assert rate is not None
        search.record(rate, True)
    assert search.next_rate() is None
    assert not search.confirmed


@pytest.mark.parametrize(("start", "tolerance", "most"), [(0, 0.1, 5), (1, 0, 5), (1, 0.1, 0)])
def test_the_search_refuses_what_cannot_be(start: float, tolerance: float, most: int) -> None:
    with pytest.raises(SpecError):
        RateSearch(start, tolerance, most)


def test_a_point_meets_by_its_share_and_says_when_it_was_close() -> None:
    assert judged(1.0, summary(90, 10)).meets
    assert not judged(1.0, summary(85, 15)).meets
    assert judged(1.0, summary(88, 12)).close
    assert not judged(1.0, summary(100)).close


async def test_a_sweep_runs_what_the_search_asks_and_stops_when_told() -> None:
    async def probe(rate: float, number: int) -> Summary:
        return summary(100) if rate <= 5 else summary(50, 50)

    found = await sweep(probe, RateSearch(1.0, 0.5))
    assert found.best is not None
    assert 3 < found.best <= 5
    assert found.confirmed
    assert not found.partial
    asked = itertools.count()
    cut = await sweep(probe, RateSearch(1.0), lambda: next(asked) >= 2)
    assert cut.partial
    assert len(cut.points) == 2


def single_server(
    rate: float, requests: int, service: float, seed: int, requested: float | None = None
) -> RunResult:
    """Serve Poisson arrivals one after another, each for `service` seconds: the capacity is 1 / service."""
    times = arrival_times("poisson", rate, requests, np.random.default_rng(seed)).tolist()
    free, records = 0.0, []
    for i, at in enumerate(times):
        free = max(free, at) + service
        records.append(record(i, scheduled=at, ttft=free - at, gap=0.0, tokens=2))
    return result(records, 0.0, times[-1] + 1 / rate, requested_rate=requested or rate)


@pytest.mark.parametrize("seed", range(3))
async def test_a_sweep_finds_no_rate_above_the_known_capacity(seed: int) -> None:
    """The objective alone would let 4.45/s pass on 3.8/s: a run of 60 requests ends before its queue is long."""
    capacity = 3.8
    objectives = Objectives(ttft=8.0, share=0.99)

    async def probe(rate: float, number: int) -> Summary:
        return summarize(single_server(rate, 60, 1 / capacity, 1000 * seed + number), objectives)

    assert (await probe(4.45, 0)).attained.value > 0.99
    found = await sweep(probe, RateSearch(1.0, 0.1, 14))
    assert found.best is not None
    assert 0.7 * capacity < found.best < 1.08 * capacity
    for point in found.points:
        assert point.summary.goodput.value <= point.summary.completed_rate * 1.0001
        assert point.summary.goodput.value <= capacity * 1.05


@pytest.mark.parametrize("requests", [20, 60, 300])
def test_goodput_of_a_short_overload_is_what_the_server_completes(requests: int) -> None:
    s = summarize(single_server(8.0, requests, 1 / 3.8, 1), Objectives(ttft=1000.0))
    assert s.attained.value == 1.0
    assert 3.1 < s.goodput.value <= 3.81
    assert any("the queue grew" in w or "too short to tell" in w for w in warnings(s, ()))


def test_a_server_that_shares_its_speed_among_all_is_judged_too_short_not_fast() -> None:
    """All requests of a burst in one batch end together: a latency of the whole run is no steady state."""
    records = [record(i, scheduled=i / 100, ttft=10.0 - i / 100, gap=0.0, tokens=2) for i in range(60)]
    s = summarize(result(records, 0.0, 0.6, requested_rate=100.0), Objectives(ttft=60.0))
    point = judged(100.0, s)
    assert not point.meets
    assert s.backlog is not None
    assert s.backlog.short
    assert judged(5.0, s, evidence=200.0).meets


@pytest.mark.parametrize("latency", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_a_server_with_room_keeps_up_whatever_its_latency(latency: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = arrival_times("poisson", 4.0, 60, rng).tolist()
    spread = rng.lognormal(0, 0.3, size=60)
    records = [
        record(i, scheduled=t, ttft=latency * x, gap=0.0, tokens=2)
        for i, (t, x) in enumerate(zip(times, spread, strict=True))
    ]
    s = summarize(result(records, 0.0, 15.0, requested_rate=4.0), Objectives(ttft=60.0))
    assert judged(4.0, s).meets


async def test_a_real_server_of_known_capacity_is_not_said_to_exceed_it() -> None:
    service, turn = 0.02, asyncio.Lock()

    async def answer(body: dict[str, object], write: Write) -> None:
        async with turn:
            await asyncio.sleep(service)
        await stream(body, write)

    objectives = Objectives(ttft=30.0)
    async with serving(answer) as (url, _), await Target.open(TargetOptions(url)) as target:

        async def probe(rate: float, number: int) -> Summary:
            load = at_times(made_up(SHAPE, 60, number), "poisson", rate, number)
            return summarize(await Runner(target, RunOptions(deadline=60.0)).run(load), objectives)

        found = await sweep(probe, RateSearch(60.0, 0.2, 3))
    # 60/s on a capacity of at most 50/s: every request met its objective, and the rate is refused all the same.
    assert found.points[0].summary.attained.value == 1.0
    assert not found.points[0].meets
    assert found.best is None or found.best < 50.0 * 1.08


async def test_sides_take_turns_and_ratios_are_paired() -> None:
    order: list[tuple[Side, int]] = []

    async def run(side: Side, number: int) -> Summary:
        order.append((side, number))
        drift = 1.0 + number  # each round slower than the last, both sides alike
        return summary(20, gap=0.01 * drift * (2.0 if side == "B" else 1.0))

    found = await compare(run, 4)
    assert order == [("A", 0), ("B", 0), ("B", 1), ("A", 1), ("A", 2), ("B", 2), ("B", 3), ("A", 3)]
    tpot = next(r for r in found.ratios if r.metric == "TPOT p50")
    assert tpot.ratio.value == pytest.approx(2.0)
    assert tpot.ratio.low == pytest.approx(2.0)
    assert tpot.verdict == "worse"
    ttft = next(r for r in found.ratios if r.metric == "TTFT p50")
    assert ttft.verdict == "too close to call"


async def test_a_stopped_comparison_judges_whole_rounds_only() -> None:
    calls = itertools.count()

    async def run(side: Side, number: int) -> Summary:
        return summary(5, partial=next(calls) >= 3)

    found = await compare(run, 4)
    assert found.partial
    assert len(found.rounds) == 1
    assert ratios((), True) == ()
