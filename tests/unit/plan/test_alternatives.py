"""Planners' miss 4 of issue 14: formats side by side, chunked prefill instead of a split, speculation."""

import re
from pathlib import Path

import pytest

from shoal.plan.alternatives import MEASURED, alternative_lines, chunked_sentence, format_rows
from shoal.plan.api import ask
from shoal.plan.explain import explain
from shoal.plan.search import search

ROOT = Path(__file__).parents[3]


def test_formats_stand_side_by_side() -> None:
    plan = search(ask("llama-3.1-70b", gpu=["h100"], users=100, context=4096))
    rows = {row.weights: row for row in format_rows(plan)}
    assert set(rows) == {"bfloat16", "fp8", "int4"}
    assert rows["bfloat16"].quality.startswith("As published")
    assert "not measured" in rows["fp8"].quality
    for name, row in rows.items():
        same = [d for d in plan.designs if d.weights.name == name]
        assert row.design is same[0]
        assert f"{same[0].devices} device" in row.sentence
    text = "\n".join(explain(plan, sensitivity=False).lines())
    assert all(row.sentence in text for row in rows.values())


def test_a_format_that_misses_is_shown_as_such() -> None:
    plan = search(ask("llama-3.1-70b", gpu=["h100"], max_devices=1, users=1, context=4096))
    rows = {row.weights: row for row in format_rows(plan)}
    assert rows["bfloat16"].design is None
    assert "no design meets" in rows["bfloat16"].sentence
    assert rows["int4"].design is not None


@pytest.mark.parametrize("cost", MEASURED, ids=lambda cost: cost.weights)
def test_measured_quality_is_that_of_the_document(cost) -> None:  # type: ignore[no-untyped-def]
    document = (ROOT / cost.source).read_text().replace("−", "-")
    row = next(line for line in document.splitlines() if line.startswith(f"| Shoal {cost.weights} |"))
    for figure in re.findall(r"[+-]?\d+\.\d+ %", cost.text):
        assert figure in row


def test_processors_show_what_was_measured() -> None:
    plan = search(ask("smollm2-135m", gpu=["cpu_2core"], users=1, context=512, tpot=1.0, ttft=60.0))
    text = "\n".join(alternative_lines(plan))
    assert "int4: " in text
    assert "+25.2 %" in text
    assert "Speculative" not in text


@pytest.mark.parametrize("split", ["auto", "only", "never"])
def test_chunked_prefill_answers_whether_it_suffices(split: str) -> None:
    plan = search(ask("llama-3.1-70b", gpu=["h200"], users=200, context=8192, split=split))  # type: ignore[arg-type]
    assert plan.best is not None
    sentence = chunked_sentence(plan, plan.best)
    single = [d for d in plan.designs if not d.split]
    if split == "only":
        assert "ruled out" in sentence
    elif single:
        assert "suffices" in sentence
        assert single[0].name in sentence
    else:
        assert "does not suffice" in sentence


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_speculation_is_named_where_the_engine_has_it(engine: str) -> None:
    plan = search(ask("llama-3.1-8b", gpu=["h100"], users=4, context=4096, engine=engine))
    (line,) = [line for line in alternative_lines(plan) if line.startswith("Speculative")]
    assert engine in line
    assert "2.5 tokens" in line
