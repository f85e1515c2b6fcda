"""What is learned of replicas' speed."""

import pytest

from shoal.policy.rates import Peers, Rates


def test_rates_are_learned_of_the_pool_and_slowness_of_each_and_it_is_not_for_ever() -> None:
    peers = Peers()
    slow, usual, other = (Rates(peers) for _ in range(3))
    for _ in range(50):
        for r in (usual, other):
            r.on_first_token(1000, 0.1)
    assert usual.prefill_rate == other.prefill_rate == pytest.approx(10_000, rel=0.1)
    newcomer = Rates(peers)
    assert newcomer.prefill_rate == usual.prefill_rate
    for _ in range(10):
        slow.on_first_token(1000, 0.4)
    assert 1.5 < usual.prefill_rate / slow.prefill_rate < 4
    slow.age(0.0)
    slow.age(600.0)
    assert slow.prefill_rate == pytest.approx(peers.rate, rel=0.01)


def test_half_a_day_without_requests_is_no_division_by_zero() -> None:
    """Evidence faded to where floats have seconds no more, but legs still."""
    rates = Rates()
    rates.age(0.0)
    rates.on_first_token(1000, 0.05)
    for minute in range(0, 15 * 60, 1):
        rates.age(minute * 60.0)
        assert 0 < rates.prefill_rate < float("inf")
    assert rates.prefill_slowness == 1.0


def test_what_chance_explains_is_no_difference() -> None:
    peers = Peers()
    first, second = Rates(peers), Rates(peers)
    for i in range(40):
        first.on_first_token(1000, 0.095 + 0.001 * (i % 10))
        second.on_first_token(1000, 0.105 + 0.001 * (i % 10))
        first.on_decoded(10, 0.10, 1 + i % 4)
        second.on_decoded(10, 0.11, 1 + i % 4)
    assert first.prefill_rate == second.prefill_rate
    assert (first.decode_seconds, first.decode_excess) == (second.decode_seconds, second.decode_excess)
    assert first.decode_excess == 0


def test_one_slow_answer_to_a_short_prompt_is_no_rate() -> None:
    peers = Peers()
    unlucky, lucky = Rates(peers), Rates(peers)
    for _ in range(20):
        for r in (unlucky, lucky):
            r.on_first_token(10, 0.02)
            r.on_first_token(1000, 0.12)
    assert peers.overhead == pytest.approx(0.02, rel=0.1)
    assert peers.rate == pytest.approx(10_000, rel=0.1)
    unlucky.on_first_token(10, 0.08)
    assert unlucky.prefill_rate == lucky.prefill_rate


def test_a_pool_that_takes_longer_than_expected_blames_nobody() -> None:
    peers = Peers()
    busy, idle = Rates(peers), Rates(peers)
    for _ in range(30):
        busy.on_first_token(5, 0.5)
    idle.on_first_token(5, 0.5)
    assert busy.prefill_rate == idle.prefill_rate


def test_decode_pressure_is_the_slope() -> None:
    rates = Rates()
    for i in range(200):
        running = 1 + i % 8
        rates.on_decoded(10, 10 * (0.01 + 0.001 * running), running)
    assert rates.decode_seconds == pytest.approx(0.001, rel=0.05)


def test_a_neighbour_is_never_free() -> None:
    rates = Rates()
    for i in range(200):
        rates.on_decoded(10, 10 * 0.01, 1 + i % 8)
    assert rates.decode_seconds == pytest.approx(0.01 / 64, rel=0.01)


def test_who_decodes_slowly_is_charged_for_every_token() -> None:
    peers = Peers()
    slow, usual, other = (Rates(peers) for _ in range(3))
    for _ in range(20):
        slow.on_decoded(10, 10 * 0.06, 2)
        usual.on_decoded(10, 10 * 0.01, 2)
        other.on_decoded(10, 10 * 0.01, 2)
    assert slow.decode_excess > 0.01
    assert usual.decode_excess == other.decode_excess == 0
