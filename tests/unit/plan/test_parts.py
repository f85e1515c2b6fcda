"""Every accelerator asked for has a line, priced or not (issue 14, fault 6); what may miss says what would not."""

from dataclasses import replace

import pytest

from shoal.plan.api import ask
from shoal.plan.explain import explain
from shoal.plan.per_part import part_lines, sure_line
from shoal.plan.search import search
from shoal.specs.catalog import load_catalog

ASKED = ("h100", "a100", "l4", "l40s", "h20", "rtx_4090", "rtx_5090", "cpu_2core")


@pytest.mark.parametrize("basis", ["owned", "rented"])
def test_nothing_asked_for_vanishes(basis: str) -> None:
    question = ask("llama-3.1-8b", gpu=ASKED, users=20, context=4096, split="never", basis=basis)  # type: ignore[arg-type]
    plan = search(question)
    assert plan.best is not None
    lines = explain(plan, sensitivity=False).lines()
    text = "\n".join(lines)
    for accelerator in question.accelerators:
        assert accelerator.name in text
        mine = [line for line in part_lines(plan) if line.startswith(f"{accelerator.name}: ")]
        assert len(mine) == (accelerator.name != plan.best.accelerator.name)
        serving = next((d for d in plan.designs if d.accelerator.name == accelerator.name), None)
        if mine and serving is None:
            assert "nothing serves" in mine[0]
        elif mine:
            assert ("unpriced" in mine[0]) == (accelerator.price(question.basis) is None)


def test_unpriced_parts_are_ranked_by_devices_after_the_priced() -> None:
    question = ask("llama-3.1-70b", gpu=["h100", "a100", "l4"], users=20, context=4096, split="never")
    plan = search(question)
    unpriced = [d for d in plan.designs if d.cost is None]
    assert {d.accelerator.name for d in unpriced} == {"a100_sxm", "l4"}
    assert [d.devices for d in unpriced] == sorted(d.devices for d in unpriced)
    assert all(d.cost is None for d in plan.designs[len(plan.designs) - len(unpriced) :])


def test_common_parts_have_a_rented_price_with_its_source() -> None:
    catalog = load_catalog()
    for name in ("a100", "l40s", "rtx_4090", "rtx_5090", "rtx_pro_6000"):
        accelerator = catalog.accelerator(name)
        figure = dict(accelerator.figures).get("price_rented")
        assert accelerator.price("rented")
        assert figure is not None
        assert figure.source
        assert figure.date >= "2026"


def test_a_part_on_which_nothing_serves_says_why() -> None:
    plan = search(ask("llama-3.1-405b", gpu=["h200", "rtx_4090"], users=1, context=2048, max_devices=8))
    (line,) = part_lines(plan)
    assert line.startswith("rtx_4090: nothing serves; nearest, ")


def test_a_first_design_that_may_miss_names_the_first_that_surely_meets() -> None:
    """Issue 14, fault 10: the price decides the order; what surely meets the targets is never hidden by it."""
    question = ask("llama-3.1-70b", gpu=["h100"], users=100, context=8192, split="never")
    for tpot in (0.03, 0.035, 0.04, 0.05, 0.06):
        plan = search(replace(question, slo=replace(question.slo, tpot=tpot)))
        best, line = plan.best, sure_line(plan)
        assert best is not None
        assert (line is None) == best.sure
        sure = next((d for d in plan.designs if d.sure), None)
        if line is not None and sure is not None:
            assert sure.name in line
