"""The search for the best rate, against servers whose limit is known; and paired comparisons."""

import itertools

import pytest
from benchkit import record, result
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.bench.compare import Side, compare, ratios
from shoal.bench.objectives import Objectives
from shoal.bench.summary import Summary, summarize
from shoal.bench.sweep import RateSearch, judged, sweep
from shoal.specs.errors import SpecError


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
