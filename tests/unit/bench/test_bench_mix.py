"""Rates over the day, and loads of several models and priorities."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchkit import record, result

from shoal.specs.errors import SpecError
from shoal.workload.curve import Day, day_times, parse_curve
from shoal.workload.objectives import Objectives
from shoal.workload.options import WorkloadOptions, workload
from shoal.workload.report.classes import class_table
from shoal.workload.report.files import Recorded, write_jsonl
from shoal.workload.shares import parse_priorities, parse_shares

CURVE = "0=0.5,6=0.5,12=2,18=1"


def test_a_curve_is_relative_to_its_mean_and_goes_on_over_midnight() -> None:
    curve = parse_curve("22=3,6=1")
    hours = np.linspace(0, 24, 24_001)
    assert float(np.trapezoid(curve.at(hours), hours)) / 24 == pytest.approx(1.0, rel=1e-6)
    # Midnight is a quarter of the way from 22 h down to 6 h.
    assert float(curve.at(np.asarray([24.0]))[0] / curve.at(np.asarray([6.0]))[0]) == pytest.approx(2.5)
    assert float(curve.at(np.asarray([22.0]))[0]) == pytest.approx(curve.peak)
    assert parse_curve("5=7").at(hours) == pytest.approx(np.ones(24_001))


def test_thinned_arrivals_follow_the_curve() -> None:
    day = Day(parse_curve(CURVE), start=6.0)
    times = day_times(day, 0.5, np.random.default_rng(1), seconds=10 * 86_400)
    assert (np.diff(times) >= 0).all()
    # Ten days of 43,200 arrivals: 0.15 % is a standard deviation.
    assert len(times) == pytest.approx(432_000, rel=0.01)
    hours = (times / 3600 + 6) % 24
    counted, _ = np.histogram(hours, bins=24, range=(0, 24))
    expected = day.curve.at(np.arange(24) + 0.5)
    assert counted / (0.5 * 36_000) == pytest.approx(expected, rel=0.04)
    # Within an hour of constant rate, gaps are exponential: as many above twice the mean as e^-2.
    flat = times[(hours < 6) & (times < 86_400)]
    gaps = np.diff(flat)
    assert (gaps > 2 * gaps.mean()).mean() == pytest.approx(np.exp(-2), rel=0.05)


def test_a_day_may_be_shorter_and_end_at_a_count() -> None:
    day = Day(parse_curve("0=0,12=1"), seconds=60.0)
    times = day_times(day, 100.0, np.random.default_rng(1), seconds=60.0)
    assert len(times) == pytest.approx(6000, rel=0.05)
    assert np.histogram(times, bins=4, range=(0, 60))[0] == pytest.approx([750, 2250, 2250, 750], rel=0.15)
    assert len(day_times(day, 100.0, np.random.default_rng(1), count=17)) == 17


def test_a_load_over_the_day_has_the_requests_of_its_duration() -> None:
    options = WorkloadOptions(rate=2.0, duration=1000.0, curve=CURVE, day_seconds=1000.0, seed=3)
    load, run = workload(options)
    assert run.concurrency is None
    assert len(load.sessions) == pytest.approx(2000, rel=0.1)
    assert load.sessions[-1].at < 1000
    assert "over the day" in load.description
    assert workload(WorkloadOptions(rate=2.0, requests=30, curve=CURVE))[0].requests == 30


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"curve": "noon=1"}, "curve.*hours of the day"),
        ({"curve": "25=1"}, "curve.*below 24"),
        ({"curve": "1=1,1=2"}, "curve.*every hour once"),
        ({"curve": "1=0"}, "curve.*above 0"),
        ({"curve": "1=-1"}, "curve"),
        ({"curve": "1=1", "rate": None}, "curve.*mean rate"),
        ({"curve": "1=1", "arrival": "gamma"}, "curve.*poisson"),
        ({"curve": "1=1", "curve_start": 24.0}, "curve_start"),
        ({"curve": "1=1", "day_seconds": 0.0}, "day_seconds"),
        ({"models": "a=x"}, "models.*a=3,b=1"),
        ({"models": "a,a"}, "models.*every name once"),
        ({"models": "a=0"}, "models"),
        ({"models": "=1"}, "models"),
        ({"priorities": "high=1"}, "priorities.*whole numbers"),
        ({"priorities": "2000=1"}, "priorities.*-1000 to 1000"),
    ],
)
def test_bad_options_are_named(changed: dict[str, object], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        workload(WorkloadOptions(**{"rate": 1.0, **changed}))  # type: ignore[arg-type]


def test_sessions_are_drawn_by_their_shares_and_else_stay_the_same() -> None:
    plain, _ = workload(WorkloadOptions(rate=1.0, requests=4000, input="uniform:10:20"))
    mixed, _ = workload(
        WorkloadOptions(rate=1.0, requests=4000, input="uniform:10:20", models="a=3,b", priorities="0=9,-1=1")
    )
    turns = [s.turns[0] for s in mixed.sessions]
    assert sum(t.model == "a" for t in turns) == pytest.approx(3000, abs=120)
    assert sum(t.priority == -1 for t in turns) == pytest.approx(400, abs=80)
    assert [t.new for t in turns] == [s.turns[0].new for s in plain.sessions]
    assert [s.at for s in mixed.sessions] == [s.at for s in plain.sessions]
    assert str(parse_shares("a=3,b", "models")) == "a=3,b=1"
    assert parse_priorities("+1=2").names == ("1",)


def test_figures_are_told_apart_by_class() -> None:
    records = [record(i, priority=i % 2, ttft=0.1 + i % 2, scheduled=i / 10) for i in range(20)]
    table = class_table(result(records), Objectives(ttft=0.5))
    assert table is not None
    assert [(row[0], row[1], row[3]) for row in table.rows] == [
        ("priority 0", "10", "100"),
        ("priority 1", "10", "0"),
    ]
    assert class_table(result(records[::2]), Objectives()) is None
    both = class_table(result([record(0, model="m"), record(1, priority=2)]), Objectives())
    assert both is not None
    assert [row[0] for row in both.rows] == ["default model, priority 2", "m, priority 0"]


def test_requests_are_written_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [Recorded("run", (record(0, ttft=0.25, model="m", priority=3), record(1)))])
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["run"], first["ttft"], first["model"], first["priority"]) == ("run", 0.25, "m", 3)
    assert len(first["events"]) == 5
    assert second["model"] is None
