"""Figures of quality from distributions that are known, and the gate on them."""

import json
import math
from importlib.resources import files

import pytest
import torch

from shoal.engine.quality import Bounds, Positions, Quality, passages, summarize


def positions(kl: list[float], loss: list[float], reference: list[float], same: list[bool]) -> Positions:
    return Positions(torch.tensor(kl), torch.tensor(loss), torch.tensor(reference), torch.tensor(same))


def example() -> Quality:
    calm = positions([0.0] * 98, [1.0] * 98, [1.0] * 98, [True] * 98)
    moved = positions([0.5, 2.0], [1.5, 3.5], [1.0, 2.0], [True, False])
    return summarize([("calm", calm), ("moved", moved)])


def test_figures() -> None:
    found = example()
    assert found.positions == 100
    assert found.reference_perplexity == pytest.approx(math.exp((99 + 2.0) / 100))
    assert found.perplexity == pytest.approx(math.exp((98 + 5.0) / 100))
    assert found.perplexity_increase == pytest.approx(math.exp(0.02) - 1)
    assert found.kl_mean == pytest.approx(0.025)
    assert (found.kl_p50, found.kl_p99, found.kl_max) == (0.0, 0.5, 2.0)
    assert found.agreement == pytest.approx(0.99)
    assert [window.text for window in found.worst(1)] == ["moved"]
    assert found.windows[1].agreement == 0.5
    assert found.windows[1].kl_mean == pytest.approx(1.25)


def test_bounds_that_hold_and_that_do_not() -> None:
    found = example()
    assert Bounds().broken(found) == ()
    assert Bounds(perplexity_increase=0.03, kl_mean=0.03, kl_p99=0.5, agreement=0.99).broken(found) == ()
    tight = Bounds(perplexity_increase=0.01, kl_mean=0.02, kl_p99=0.4, agreement=0.995)
    assert [line.split(",")[0] for line in tight.broken(found)] == [
        "perplexity increase 0.0202",
        "mean KL 0.025",
        "99th percentile of KL 0.5",
        "greedy agreement 0.99",
    ]


def test_numbers_that_are_none_break_every_bound() -> None:
    broken = positions([math.nan, 0.1], [math.nan, 1.0], [1.0, 1.0], [False, True])
    assert len(Bounds(perplexity_increase=9.0, kl_mean=9.0).broken(summarize([("", broken)]))) == 2


def test_the_built_in_text_is_prose_of_some_length() -> None:
    assert sum(map(len, passages())) > 10_000
    assert all("\n" not in text and len(text) > 500 for text in passages())
    named = json.loads(files("shoal.engine").joinpath("passages.json").read_bytes())
    assert all("(1" in name for name in named), "each says what it is from, and when"
