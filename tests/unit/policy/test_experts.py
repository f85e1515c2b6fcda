"""Where experts live: the algorithm on cases worked by hand, and its promises on any."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.experts import (
    EMPTY,
    MIN_CHOICES,
    ExpertBalancer,
    LayerLoad,
    LayerPlacement,
    add_loads,
    imbalance,
    initial_placement,
    rebalance,
)


def test_experts_begin_in_runs_with_room_to_spare() -> None:
    assert initial_placement(5, 2, 1).slots == ((0, 1, 2, EMPTY), (3, 4, EMPTY, EMPTY))
    assert initial_placement(4, 4).slots == ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize(("experts", "ranks", "spare"), [(3, 4, 0), (3, 0, 0), (3, 1, -1)])
def test_what_cannot_be_placed_is_refused(experts: int, ranks: int, spare: int) -> None:
    with pytest.raises(ValueError, match=f"{experts} experts on {ranks} ranks with {spare} spare"):
        initial_placement(experts, ranks, spare)


def test_the_example_of_the_module() -> None:
    """Loads 8 2 2 1 on two ranks of three slots: e0 is asked for most and gets a second replica, then e1."""
    before = initial_placement(4, 2, 1)
    loads = (8, 2, 2, 1)
    assert before.rank_loads(loads) == (10, 3)
    after = rebalance(loads, before)
    assert after.slots == ((0, 1, 2), (0, 3, 1))
    assert after.rank_loads(loads) == (7, 6)


def test_an_even_load_moves_nothing() -> None:
    current = initial_placement(8, 4, 1)
    assert rebalance([5.0] * 8, current) == current
    assert rebalance([0.0] * 8, current) == current


def test_a_small_gain_moves_nothing_and_a_larger_one_does() -> None:
    current = initial_placement(4, 2)
    loads = (52, 50, 49, 49)  # 102 and 98; swapping gains less than 2 %
    assert rebalance(loads, current, min_gain=0.05) == current
    assert rebalance((90, 80, 20, 10), current).rank_loads((90, 80, 20, 10)) == (100, 100)


def test_experts_that_stay_keep_rank_and_slot() -> None:
    """e0 and e1 share a rank and are the heavy ones: one of them has to go, and nobody else than its partner."""
    current = initial_placement(6, 3)
    after = rebalance((10, 10, 1, 1, 10, 1), current)
    moved = sum(
        a != b for old, new in zip(current.slots, after.slots, strict=True) for a, b in zip(old, new, strict=True)
    )
    assert moved == 2
    assert max(after.rank_loads((10, 10, 1, 1, 10, 1))) == 11


def test_groups_that_are_chosen_together_stay_on_a_node() -> None:
    """Eight experts in four groups on two nodes of two ranks: a group's replicas are all on one node."""
    loads = (90, 10, 40, 40, 10, 5, 30, 20)
    after = rebalance(loads, initial_placement(8, 4, 1), groups=4, nodes=2, min_gain=0.0)
    homes = after.homes(8)
    for group in range(4):
        nodes = {rank // 2 for expert in (2 * group, 2 * group + 1) for rank, _ in homes[expert]}
        assert len(nodes) == 1
    weights = [sum(after.rank_loads(loads)[2 * node : 2 * node + 2]) for node in range(2)]
    assert sorted(weights) == [115, 130]  # {90+10, 15} and {80, 50}: heaviest into the lighter


def test_groups_that_cannot_be_dealt_count_as_one() -> None:
    current = initial_placement(6, 3, 1)
    loads = (60, 10, 10, 10, 10, 10)
    assert rebalance(loads, current, groups=4, nodes=2) == rebalance(loads, current)


LOADS = st.integers(2, 24).flatmap(lambda n: st.lists(st.integers(0, 1000), min_size=n, max_size=n))


@settings(max_examples=200, deadline=None)
@given(LOADS, st.integers(1, 6), st.integers(0, 3))
def test_every_expert_has_a_home_and_nothing_gets_worse(loads: list[int], ranks: int, spare: int) -> None:
    ranks = min(ranks, len(loads))
    current = initial_placement(len(loads), ranks, spare)
    for _ in range(3):
        after = rebalance(loads, current)
        assert len(after.slots) == ranks
        assert {len(held) for held in after.slots} == {current.slots_per_rank}
        assert all(homes for homes in after.homes(len(loads)))
        for held in after.slots:
            real = [expert for expert in held if expert != EMPTY]
            assert len(set(real)) == len(real)
        assert sum(after.rank_loads(loads)) == pytest.approx(sum(loads))
        assert max(after.rank_loads(loads)) <= max(current.rank_loads(loads)) + 1e-9
        assert rebalance(loads, current) == after
        loads, current = loads[::-1], after


@settings(max_examples=100, deadline=None)
@given(LOADS, st.integers(2, 6))
def test_with_a_spare_slot_a_rank_the_busiest_is_near_the_mean(loads: list[int], ranks: int) -> None:
    """Greedy packing of pieces no larger than the largest: at most the mean and one piece."""
    ranks = min(ranks, len(loads))
    current = initial_placement(len(loads), ranks, 2)
    after = rebalance(loads, current, min_gain=0.0)
    counts = [len(homes) for homes in after.homes(len(loads))]
    piece = max(load / count for load, count in zip(loads, counts, strict=True))
    if after != current:
        assert max(after.rank_loads(loads)) <= sum(loads) / ranks + 2 * piece + 1e-9


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    assert imbalance((3, 1)) == 1.5
    assert imbalance((0, 0)) == 1.0


def test_loads_of_ranks_add_up_by_layer() -> None:
    first = LayerLoad(3, (1, 2), 2, 3, (3, 0))
    second = LayerLoad(3, (4, 0), 4, 4, (0, 4))
    other = LayerLoad(1, (1, 1), 1, 1, (2, 0))
    assert add_loads([first, other, second]) == (other, LayerLoad(3, (5, 2), 6, 7, (3, 4)))


def test_a_balancer_asks_once_a_window_and_waits_until_it_knows_enough() -> None:
    start = initial_placement(4, 2, 1)
    balancer = ExpertBalancer([(7, start)], window=3)
    assert [balancer.wants_load() for _ in range(6)] == [False, False, True, False, False, True]
    few = LayerLoad(7, (5, 3, 0, 0), 8, 8, (8, 0))
    assert balancer.decide([few]) is None
    many = LayerLoad(7, tuple(MIN_CHOICES * n for n in (5, 3, 0, 0)), 8, 8, (8, 0))
    decision = balancer.decide([many])
    assert decision is not None
    [(layer, placement)] = decision.layers
    assert layer == 7
    assert balancer.moves == 1
    assert balancer.imbalance == (2.0,)
    assert imbalance(placement.rank_loads(many.choices)) == 1.0
    assert balancer.decide([many]) is None


def test_placements_travel_as_messages() -> None:
    placement = initial_placement(5, 2, 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(placement), type=LayerPlacement) == placement


def test_a_window_below_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        ExpertBalancer([], 0)
