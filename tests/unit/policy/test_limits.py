"""Limits per client and minute, and the token counts that they are charged by, without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.estimates import TokenEstimator
from shoal.policy.limits import RateLimit


def test_a_refusal_says_when_and_counts_nothing() -> None:
    limit = RateLimit(requests_per_minute=2, tokens_per_minute=600)
    assert [limit.charge(100, 0.0) is None for _ in range(2)] == [True, True]
    refusal = limit.charge(100, 0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after) == ("rate_limit_exceeded", 30.0)
    assert "2 requests a minute" in refusal.reason
    assert limit.charge(100, 29.9) is not None
    assert limit.charge(600, 31.0) is None, "of 600 tokens 200 went and came back; the refusals took none"


def test_what_was_used_replaces_what_was_charged() -> None:
    limit = RateLimit(None, 600)
    assert limit.charge(600, 0.0) is None
    limit.settle(600, 100)
    assert limit.charge(500, 0.0) is None
    refusal = limit.charge(10, 0.0)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(1.0)


def test_more_than_a_minutes_worth_goes_once_it_is_full() -> None:
    limit = RateLimit(None, 60)
    assert limit.charge(1000, 0.0) is None
    assert limit.charge(1, 900.0) is not None
    assert limit.charge(1, 1000.0) is None


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 30)), max_size=40))
def test_no_window_gets_more_than_its_rate_and_one_burst(steps: list[tuple[int, float]]) -> None:
    limit, now, taken = RateLimit(None, 600), 0.0, 0
    for tokens, wait in steps:
        now += wait
        if limit.charge(tokens, now) is None:
            taken += tokens
    assert taken <= 600 + 10 * now + 1e-6


def test_estimates_follow_what_engines_count() -> None:
    estimator = TokenEstimator()
    assert (estimator.prompt_tokens("m", 400), estimator.prompt_tokens("m", 0)) == (100, 1)
    assert (estimator.output_tokens("m", None), estimator.output_tokens("m", 16)) == (256, 16)
    for _ in range(200):
        estimator.observe("m", 300, 100, 10)
    assert estimator.prompt_tokens("m", 300) == 100
    assert estimator.output_tokens("m", None) in (10, 11)
    assert estimator.output_tokens("other", None) == 256
