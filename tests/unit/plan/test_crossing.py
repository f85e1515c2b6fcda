"""Which axis wins over a link follows from the link, and the figures can be worked out by hand."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.specs.catalog.models import catalog_model
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.stages import layer_costs, stage_layers

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from crossing import MeasuredLink, MeasuredStep, Site, decoding

MODEL = catalog_model("smollm2-135m")
STEP = MeasuredStep(((1, 0.060), (4, 0.080), (8, 0.110)), fixed=0.010)
FAST = MeasuredLink(10e-6, 5e-6, 10e9)
SLOW = MeasuredLink(5.5e-3, 5.2e-3, 2.5e6)
TP, PP = Layout(tp=2), Layout(pp=2)


def rates(link: MeasuredLink, streams: int) -> tuple[float, float]:
    site = Site(1, FAST, link, cores=2)
    tp, pp = (decoding(MODEL, layout, streams, STEP, site).rate for layout in (TP, PP))
    return tp, pp


def test_tensor_wins_on_the_fast_link_and_pipeline_on_the_slow_one() -> None:
    tp, pp = rates(FAST, 1)
    assert tp > pp
    for streams in (1, 8):
        tp, pp = rates(SLOW, streams)
        assert pp > tp


def test_one_streams_pipeline_takes_the_whole_step_and_its_trips() -> None:
    site = Site(1, FAST, SLOW, cores=2)
    found = decoding(MODEL, PP, 1, STEP, site)
    assert found.compute == pytest.approx(0.060)
    assert found.communication == pytest.approx(2 * 5.2e-3 + 576 * 4 / 2.5e6)
    assert found.token == pytest.approx(found.compute + found.communication)


def test_tensor_parallelism_pays_for_every_all_reduce() -> None:
    site = Site(1, FAST, SLOW, cores=2)
    found = decoding(MODEL, TP, 1, STEP, site)
    reduces = 61 * (5.5e-3 + 576 * 4 / 2.5e6)
    logits = 5.2e-3 + 49152 / 2 * 4 / 2.5e6
    assert found.communication == pytest.approx(reduces + logits + 5.2e-3)
    # 6 of 9 heads, half of the columns and of the vocabulary: between a half and two thirds.
    assert 0.010 + 0.050 * 0.5 < found.compute < 0.010 + 0.050 * 2 / 3


def test_streams_fill_the_stages_until_the_costliest_binds() -> None:
    site = Site(1, FAST, FAST, cores=2)
    found = decoding(MODEL, PP, 8, STEP, site)
    costs = layer_costs(MODEL)
    largest = max(sum(costs[layer] for layer in stage) for stage in stage_layers(MODEL, 2)) / sum(costs)
    assert found.token == pytest.approx(2 * largest * 0.080, rel=1e-3)


def test_ranks_beyond_the_cores_share_them() -> None:
    site = Site(2, FAST, FAST, cores=2)
    both = Layout(tp=2, pp=2)
    few = decoding(MODEL, both, 8, STEP, site)
    many = decoding(MODEL, both, 8, STEP, replace(site, cores=4))
    assert few.token == pytest.approx(2 * few.compute * 2 / 2)
    assert many.rate > few.rate


def test_tensor_parallelism_stays_inside_a_host_that_holds_its_ranks() -> None:
    inside = decoding(MODEL, Layout(tp=2, pp=2), 1, STEP, Site(2, FAST, SLOW, cores=4))
    across = decoding(MODEL, Layout(tp=2, pp=2), 1, STEP, Site(1, FAST, SLOW, cores=4))
    assert inside.communication < 0.02 < 0.3 < across.communication
    assert inside.rate > across.rate


def test_what_it_does_not_cover_is_refused() -> None:
    site = Site(1, FAST, FAST, cores=2)
    with pytest.raises(SpecError, match="layout of tp and pp alone"):
        decoding(MODEL, Layout(cp=2), 1, STEP, site)
    with pytest.raises(SpecError, match="streams"):
        decoding(MODEL, TP, 0, STEP, site)


def test_rows_between_and_beyond_those_measured() -> None:
    assert STEP.at(1) == 0.060
    assert STEP.at(6) == pytest.approx(0.095)
    assert STEP.at(16) == pytest.approx(0.220)
