"""The correction trees: every way of asking them gives the same answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan.estimator import ServingEstimator
from shoal.plan.residual import Bundle, Ensemble, Tree

VALUES = st.floats(-5, 5, allow_nan=False)
TREES = st.lists(
    st.integers(0, 4).flatmap(
        lambda depth: st.builds(
            Tree,
            st.tuples(*[st.tuples(st.integers(0, 3), st.sampled_from([-1.5, 0.0, 0.25, 3.0]))] * depth),
            st.tuples(*[st.floats(-1, 1)] * (1 << depth)),
        )
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(ensembles=st.lists(TREES, min_size=1, max_size=4), rows=st.lists(st.tuples(*[VALUES] * 4), min_size=1))
def test_a_bundle_answers_as_its_ensembles(ensembles: list[list[Tree]], rows: list[tuple[float, ...]]) -> None:
    built = [Ensemble(trees) for trees in ensembles]
    table = np.array(rows)
    found = Bundle(built).many(table)
    assert np.array_equal(found, np.stack([ensemble.many(table) for ensemble in built]))


def test_a_value_at_a_threshold_is_not_above_it() -> None:
    built = Ensemble([Tree(((0, 1.0),), (0.0, 1.0))])
    table = np.array([[1.0], [np.nextafter(1.0, 2.0)]])
    assert Bundle([built]).many(table).tolist() == [[0.0, 1.0]]
    assert built.many(table).tolist() == [0.0, 1.0]


def test_shipped_trees_answer_one_case_and_many_alike() -> None:
    bundle = ServingEstimator()._bundle
    table = np.random.default_rng(7).normal(2, 3, (50, 30))
    table[:, 3] = 1.0
    many = bundle.many(table)
    for row, expected in zip(table, many.T, strict=True):
        assert bundle.one(row) == pytest.approx(expected.tolist(), abs=1e-9)


def test_more_thresholds_than_a_byte_counts() -> None:
    trees = [Tree(((0, float(n)),), (0.0, 1.0)) for n in range(700)]
    found = Bundle([Ensemble(trees)]).many(np.array([[350.5], [-1.0], [1000.0]]))
    assert found.tolist() == [[351.0, 0.0, 700.0]]
