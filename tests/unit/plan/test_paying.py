"""Owning against renting against an API, worked out by hand."""

from dataclasses import replace

import pytest

from shoal.plan.api import ask
from shoal.plan.paying import FACILITY, HOST_SHARE, paying, paying_lines
from shoal.plan.search import search


def test_break_evens_are_the_figures_by_hand() -> None:
    question = ask("llama-3.1-8b", gpu=["h100"], users=50, input_tokens=1000, output_tokens=250, split="never")
    best = search(question).best
    assert best is not None
    assert best.cost is not None
    found = paying(question, best)
    assert found.owned == pytest.approx(1.17 * best.devices)
    assert found.rented == pytest.approx(2.00 * best.devices)
    assert found.share_of_hours == pytest.approx(1.17 / 2.00)
    assert found.kilowatts == pytest.approx(0.7 * best.devices * (1 + HOST_SHARE) * FACILITY)
    million = best.cost.per_hour / found.output_per_hour * 1e6
    assert million == pytest.approx(best.cost.per_million_output.mean)


def test_sentences_say_what_is_known_and_no_more() -> None:
    question = ask("llama-3.1-8b", gpu=["h100"], users=50, input_tokens=1000, output_tokens=250, split="never")
    best = search(question).best
    assert best is not None
    both = "\n".join(paying_lines(question, best))
    assert "owning is cheaper from 58% of the hours on" in both
    assert "An API breaks even" in both
    unknown = replace(best, accelerator=replace(best.accelerator, price_owned=None, price_rented=None, watts=None))
    assert paying_lines(question, unknown) == ()


def test_a_peaky_demand_sells_fewer_tokens_for_the_same_devices() -> None:
    question = ask("llama-3.1-8b", gpu=["h100"], users=50, context=4096, split="never")
    peaky = replace(question, workload=replace(question.workload, peak_to_mean=4.0))
    flat, high = search(question).best, search(peaky).best
    assert flat is not None
    assert high is not None
    assert paying(peaky, high).output_per_hour == pytest.approx(paying(question, flat).output_per_hour / 4)
