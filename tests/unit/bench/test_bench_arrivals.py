"""Arrival processes and lengths have the statistics that their names promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.specs.errors import SpecError
from shoal.workload.arrivals import arrival_times, scaled_times
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Shape, at_times, made_up

N = 20_000


def gaps(process: str, rate: float, cv: float = 1.0) -> np.ndarray:
    return np.diff(arrival_times(process, rate, N, np.random.default_rng(3), cv))


def test_poisson_gaps_are_exponential() -> None:
    drawn = gaps("poisson", 5.0)
    assert drawn.mean() == pytest.approx(0.2, rel=0.03)
    assert drawn.std() == pytest.approx(0.2, rel=0.04)
    # Memoryless: P(gap > t) = exp(-rate t).
    assert (drawn > 0.4).mean() == pytest.approx(np.exp(-2), rel=0.06)


@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_gamma_gaps_have_the_variation_asked_for(cv: float) -> None:
    drawn = gaps("gamma", 10.0, cv)
    assert drawn.mean() == pytest.approx(0.1, rel=0.12)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.12)


def test_constant_and_burst() -> None:
    assert np.allclose(gaps("constant", 4.0), 0.25)
    assert not arrival_times("burst", 1.0, 9, np.random.default_rng(0)).any()


@given(st.sampled_from(["poisson", "gamma", "constant"]), st.floats(0.01, 1e4), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_arrivals_ascend_from_zero(process: str, rate: float, count: int) -> None:
    times = arrival_times(process, rate, count, np.random.default_rng(0))
    assert len(times) == count
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()


def test_a_trace_is_scaled_by_speed_or_to_a_rate() -> None:
    times = np.asarray([10.0, 12.0, 20.0])
    assert scaled_times(times, speed=2).tolist() == [0.0, 1.0, 5.0]
    to_rate = scaled_times(times, rate=4.0)
    assert (len(times) - 1) / to_rate[-1] == pytest.approx(4.0)
    # The shape stays: the first gap was a fifth of all.
    assert to_rate[1] / to_rate[2] == pytest.approx(0.2)


@pytest.mark.parametrize("process", ["uniform", "", "Poisson"])
def test_an_unknown_process_is_named(process: str) -> None:
    with pytest.raises(SpecError, match=r"arrival.*poisson, gamma, constant, burst"):
        arrival_times(process, 1.0, 5, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("128", 128, 0),
        ("uniform:64:256", 160, 192 / np.sqrt(12)),
        ("normal:200:30", 200, 30),
        ("lognormal:200:80", 200, 80),
    ],
)
def test_lengths_have_the_mean_and_deviation_asked_for(text: str, mean: float, std: float) -> None:
    drawn = parse_lengths(text, "input").draw(N, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(std, rel=0.05, abs=1e-9)


def test_lengths_are_cut_and_written_back() -> None:
    draw = parse_lengths("normal:50:100:min=8:max=90", "input")
    lengths = draw.draw(N, np.random.default_rng(1))
    assert (lengths.min(), lengths.max()) == (8, 90)
    assert parse_lengths(str(draw), "input") == draw


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "x", "normal:5", "uniform:9:3", "1.5", "normal:5:nan", "5:max=0", "5:most=3", "lognormal:0:2"],
)
def test_a_length_that_cannot_be_is_refused_by_name(text: str) -> None:
    with pytest.raises(SpecError, match="output"):
        parse_lengths(text, "output")


def test_a_seed_gives_the_same_load_and_rates_differ_in_times_only() -> None:
    shape = Shape(
        parse_lengths("lognormal:50:20", "i"), turns=parse_lengths("uniform:1:3", "t"), shared=16, groups=2
    )
    first, second = (at_times(made_up(shape, 40, 7, "x"), "poisson", rate, 7) for rate in (2.0, 4.0))
    assert first == at_times(made_up(shape, 40, 7, "x"), "poisson", 2.0, 7)
    assert [s.turns for s in first.sessions] == [s.turns for s in second.sessions]
    assert (first.sessions[-1].at - first.sessions[0].at) == pytest.approx(
        2 * (second.sessions[-1].at - second.sessions[0].at)
    )
    assert {s.turns[0].new[0].key for s in first.sessions} == {"system/0", "system/1"}
    assert made_up(shape, 40, 8, "x") != made_up(shape, 40, 7, "x")
