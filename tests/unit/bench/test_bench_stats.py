"""Quantiles, and intervals that cover what they claim to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.workload.stats import (
    block_length,
    distribution,
    mean_estimate,
    quantile,
    ratio_estimate,
    resample_counts,
    student_975,
)


def singles(values: np.ndarray) -> list[np.ndarray]:
    return [np.asarray([v]) for v in values]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0.01, 1.0))
@settings(max_examples=100, deadline=None)
def test_a_quantile_is_the_nearest_rank(values: list[float], level: float) -> None:
    # The definition, written out: the smallest value that at least this share does not exceed.
    expected = next(v for v in sorted(values) if sum(x <= v for x in values) / len(values) >= level - 1e-12)
    assert quantile(np.asarray(values), level) == expected


def test_distribution_of_known_values() -> None:
    found = distribution(singles(np.arange(1.0, 101.0)))
    assert found is not None
    assert (found.count, found.minimum, found.maximum, found.mean.value) == (100, 1.0, 100.0, 50.5)
    assert [q.estimate.value for q in found.quantiles] == [50.0, 90.0, 95.0, 99.0]
    assert [q.few for q in found.quantiles] == [False, False, True, True]
    for q in found.quantiles:
        assert q.estimate.low is not None
        assert q.estimate.high is not None
        assert q.estimate.low <= q.estimate.value <= q.estimate.high


def test_nothing_and_too_little() -> None:
    assert distribution([]) is None
    assert distribution([np.zeros(0)]) is None
    two = distribution(singles(np.asarray([1.0, 2.0])))
    assert two is not None
    assert two.at(0.5).low is None


@pytest.mark.parametrize(("level", "truth"), [(0.5, np.log(2)), (0.9, np.log(10))])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(level: float, truth: float) -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(120):
        found = distribution(singles(rng.exponential(1.0, 200)), (level,), seed=trial, resamples=200)
        assert found is not None
        low, high = found.at(level).low, found.at(level).high
        assert low is not None
        assert high is not None
        hits += low <= truth <= high
    # 95 % of 120 is 114; a block bootstrap of 200 values is a little short of that.
    assert 102 <= hits <= 120


def test_an_interval_of_correlated_values_is_wider_than_of_independent_ones() -> None:
    rng = np.random.default_rng(5)
    waves = np.cumsum(rng.normal(size=400)) * 0.1
    shuffled = rng.permutation(waves)
    widths = []
    for values in (waves, shuffled):
        e = mean_estimate(values)
        assert e.low is not None
        assert e.high is not None
        widths.append(e.high - e.low)
    assert widths[0] > 1.5 * widths[1]


def test_gaps_of_one_request_are_resampled_together() -> None:
    # Ten requests, each with 100 equal gaps: as good as ten values, not a thousand.
    rng = np.random.default_rng(2)
    levels = rng.exponential(1.0, 10)
    together = distribution([np.full(100, level) for level in levels], (0.5,))
    apart = distribution(singles(np.repeat(levels, 100)), (0.5,))
    assert together is not None
    assert apart is not None
    assert together.count == apart.count == 1000
    wide, narrow = together.mean, apart.mean
    assert wide.high is not None
    assert wide.low is not None
    assert narrow.high is not None
    assert narrow.low is not None
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@given(st.integers(1, 200), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_every_resample_draws_as_many_owners_as_there_are(owners: int, seed: int) -> None:
    counts = np.stack(list(resample_counts(owners, 7, seed)))
    assert counts.shape == (7, owners)
    assert (counts.sum(axis=1) == owners).all()
    assert 1 <= block_length(owners) <= max(1, owners)


def test_student_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 5, 10, 11, 20, 100):
        assert student_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_a_ratio_is_the_geometric_mean_with_its_interval() -> None:
    e = ratio_estimate([2.0, 0.5, 1.0])
    assert e.value == pytest.approx(1.0)
    assert e.low is not None
    assert e.high is not None
    assert e.low * e.high == pytest.approx(1.0)
    assert ratio_estimate([3.0]).low is None
