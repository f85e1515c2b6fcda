"""Every rank is in exactly one group of each axis, and the groups are the ones that the axes mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.errors import InvalidOption
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.mesh import Mesh
from shoal.specs.layout import GROUP_AXES, Layout

degrees = st.integers(1, 3)


@st.composite
def specs(draw: st.DrawFn) -> Layout:
    dp, pp, cp, tp = (draw(degrees) for _ in range(4))
    stage = dp * cp * tp
    return Layout(
        dp=dp, pp=pp, cp=cp, tp=tp, ep=draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    )


@settings(max_examples=100)
@given(specs())
def test_groups_of_an_axis_partition_the_world(spec: Layout) -> None:
    sizes = {
        "tp": spec.tp,
        "pp": spec.pp,
        "cp": spec.cp,
        "dp": spec.dp,
        "ep": spec.ep,
        "etp": spec.expert_cut,
        "world": spec.world,
    }
    for axis in GROUP_AXES:
        groups = spec.groups(axis)
        assert sorted(r for group in groups for r in group) == list(range(spec.world))
        assert {len(group) for group in groups} == {sizes[axis]}
        for group in groups:
            assert all(spec.members(axis, rank) == group for rank in group)


@settings(max_examples=100)
@given(specs())
def test_coordinates_and_ranks_are_inverse_and_tp_is_fastest(spec: Layout) -> None:
    for rank in range(spec.world):
        assert spec.rank(spec.coordinates(rank)) == rank
        assert spec.members("tp", rank) == tuple(range(rank - rank % spec.tp, rank - rank % spec.tp + spec.tp))
    assert sum(spec.samples(rank) for rank in range(spec.world)) == spec.dp


@settings(max_examples=100)
@given(specs())
def test_expert_groups_stay_within_a_stage_and_cover_it(spec: Layout) -> None:
    for rank in range(spec.world):
        stage = spec.coordinates(rank).pp
        ep, etp = spec.members("ep", rank), spec.members("etp", rank)
        assert {spec.coordinates(r).pp for r in (*ep, *etp)} == {stage}
        if spec.ep > 1:
            reached = {other for peer in etp for other in spec.members("ep", peer)}
            assert len(reached) == spec.stage_ranks


def test_stages_are_slowest_so_that_a_node_can_hold_whole_stages() -> None:
    layout = Layout(dp=2, pp=2, tp=2)
    assert layout.groups("pp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_ranks_of_two_stages_by_two_shards() -> None:
    spec = Layout(pp=2, tp=2)
    assert spec.groups("tp") == ((0, 1), (2, 3))
    assert spec.groups("pp") == ((0, 2), (1, 3))
    assert [spec.samples(rank) for rank in range(4)] == [False, False, True, False]
    assert spec.describe(3) == "rank 3 (pp 1 of 2, tp 1 of 2)"


def test_ep_alone_means_lanes() -> None:
    spec = EngineOptions(model="m", ep=2).layout
    assert (spec.dp, spec.world, spec.lock_step) == (2, 2, True)
    assert spec.groups("ep") == ((0, 1),)


def test_ep_over_lanes_and_shards_keeps_slices_of_an_expert_in_one_lane() -> None:
    spec = Layout(dp=2, tp=2, ep=2)
    assert spec.groups("etp") == ((0, 1), (2, 3))
    assert spec.groups("ep") == ((0, 2), (1, 3))


def test_an_ep_that_does_not_divide_is_refused_with_the_rule_and_the_valid_ones() -> None:
    with pytest.raises(InvalidOption, match=r"ep=3 .* divisor of dp·cp·tp = 4, .*: 1, 2, 4") as caught:
        EngineOptions(model="m", dp=2, tp=2, ep=3).validate()
    assert caught.value.field == "ep"


@pytest.mark.parametrize("axis", ["dp", "pp", "cp", "tp", "ep"])
@pytest.mark.parametrize("degree", [0, -1, True])
def test_a_degree_below_one_is_refused_by_name(axis: str, degree: int) -> None:
    with pytest.raises(InvalidOption, match=f"{axis}={degree!r}"):
        EngineOptions(model="m", **{axis: degree}).validate()


def test_a_mesh_of_one_has_groups_that_do_nothing() -> None:
    mesh = Mesh.single()
    payload = object()
    for axis in ("tp", "pp", "cp", "dp", "ep", "etp", "world"):
        group = mesh.group(axis)
        assert (group.size, group.index, group.ranks) == (1, 0, (0,))
        assert group.all_reduce(payload) is payload
    assert mesh.traffic.snapshot() == ()
    assert mesh.samples
    with pytest.raises(ValueError, match="nobody to send to"):
        mesh.pp.send(payload, 0)
