"""Collectives against their textbook costs and against counts that a real engine's counters show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    hand_off,
    one_shot_all_reduce,
    point_to_point,
    ring_all_reduce,
    step_traffic,
    tree_all_reduce,
)
from shoal.specs.errors import SpecError


def test_ring_of_eight_moves_seven_quarters_of_the_message() -> None:
    seconds = ring_all_reduce(8, 800e6, 1e-6, 100e9)
    assert seconds == pytest.approx(14e-6 + 1.75 * 800e6 / 100e9)


def test_one_rank_talks_to_nobody() -> None:
    for cost in (ring_all_reduce, tree_all_reduce, one_shot_all_reduce, all_gather, all_to_all):
        assert cost(1, 1e9, 1e-5, 1e9) == 0


def test_small_messages_go_one_shot_and_large_ones_by_ring() -> None:
    small, large = 8e3, 1e9
    assert all_reduce(8, small, 1e-5, 100e9) == one_shot_all_reduce(8, small, 1e-5, 100e9)
    assert all_reduce(8, large, 1e-5, 100e9) == ring_all_reduce(8, large, 1e-5, 100e9)


@given(st.integers(2, 512), st.floats(0, 1e9), st.floats(1e-7, 1e-3), st.floats(1e8, 1e12))
@settings(max_examples=100)
def test_best_is_never_worse_and_an_all_reduce_is_two_halves(
    ranks: int, size: float, latency: float, bandwidth: float
) -> None:
    best = all_reduce(ranks, size, latency, bandwidth)
    assert all(best <= cost(ranks, size, latency, bandwidth) for cost in (ring_all_reduce, tree_all_reduce))
    gathered = all_gather(ranks, size, latency, bandwidth)
    assert ring_all_reduce(ranks, size, latency, bandwidth) == pytest.approx(2 * gathered)


def test_hand_off_hides_behind_prefill_layer_by_layer() -> None:
    whole = hand_off(2.7e9, 1, 50e9, 1e-4, efficiency=0.8)
    assert whole == pytest.approx(2.7e9 / (50e9 * 0.8) + 1e-4)
    layered = hand_off(2.7e9, 1, 50e9, 1e-4, layers=80, efficiency=0.8)
    assert layered - 1e-4 == pytest.approx((whole - 1e-4) / 80)


def test_counts_of_a_step() -> None:
    found = {t.kind: t for t in step_traffic(64, 6, 10, tp=2, pp=3, ep=2, moe_layers=4, top_k=2, dispatch_bytes=1)}
    assert found["all_reduce"].messages == 12
    assert found["all_reduce"].payload == 10 * 64 * 2
    assert found["point_to_point"].messages == 2
    assert found["dispatch"].bytes == 4 * 10 * 2 * 64 * 1
    assert found["combine"].bytes == 4 * 10 * 2 * 64 * 2
    assert step_traffic(64, 6, 10) == ()


def test_llama_405b_synchronizes_252_times_a_token() -> None:
    (traffic,) = step_traffic(16384, 126, 1, tp=8)
    assert traffic.messages == 252


def test_bad_values_name_their_field() -> None:
    with pytest.raises(SpecError, match=r"collective\.ranks: 0"):
        ring_all_reduce(0, 1, 1, 1)
    with pytest.raises(SpecError, match=r"collective\.bandwidth"):
        point_to_point(1, 1, 0)
    with pytest.raises(SpecError, match=r"handoff\.efficiency"):
        hand_off(1, 1, 1, 0, efficiency=1.5)
