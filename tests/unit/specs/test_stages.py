"""The deal of layers to stages, that engine and planner share."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.specs.catalog.models import catalog_model
from shoal.specs.errors import SpecError
from shoal.specs.stages import balance, layer_costs, stage_layers


@settings(max_examples=100)
@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=9), data=st.data())
def test_no_partition_has_a_cheaper_peak(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    ranges = balance(costs, stages)
    assert [layer for r in ranges for layer in r] == list(range(len(costs)))
    assert len(ranges) == stages
    assert all(ranges)
    peak = max(sum(costs[r.start : r.stop]) for r in ranges)
    for cuts in combinations(range(1, len(costs)), stages - 1):
        bounds = [0, *cuts, len(costs)]
        assert peak <= max(sum(costs[a:b]) for a, b in pairwise(bounds))


@settings(max_examples=100)
@given(costs=st.lists(st.floats(0, 1e6), min_size=1, max_size=30), data=st.data())
def test_rounding_never_leaves_a_stage_without_layers(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    ranges = balance(costs, stages)
    assert [layer for r in ranges for layer in r] == list(range(len(costs)))
    assert all(ranges)


def test_a_heavy_head_takes_layers_from_the_last_stage() -> None:
    assert [len(r) for r in balance([1.0] * 11 + [5.0], 2)] == [8, 4]


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(SpecError, match=r"pp: 4 .* 1 to 3"):
        balance([1, 1, 1], 4)


def test_a_large_vocabulary_counts_as_layers() -> None:
    """SmolLM2's head reads as much as eight of its layers."""
    model = catalog_model("smollm2-135m")
    costs = layer_costs(model)
    assert costs[-1] - costs[1] == 49152 * 576
    assert [len(stage) for stage in stage_layers(model, 2)] == [19, 11]
