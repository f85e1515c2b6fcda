"""Planners' miss 6 of issue 14: prefill on one part, decode on another."""

import re
from dataclasses import replace
from functools import lru_cache

import pytest
import yaml
from emit_kit import option, words

from shoal.cli.entry import main
from shoal.plan.api import ask
from shoal.plan.breakdown import candidate_of
from shoal.plan.cautions import cautions
from shoal.plan.designs import Design, Plan
from shoal.plan.emit import emit
from shoal.plan.explain import explain
from shoal.plan.pairing import MAX_MIXED, hand_off_seconds
from shoal.plan.paying import paying
from shoal.plan.question import Question
from shoal.plan.report import plan_data
from shoal.plan.search import search
from shoal.specs.catalog import load_catalog
from shoal.specs.catalog.hand_over import hand_over_problem
from shoal.specs.hardware import Accelerator, Link

MODEL = "llama-3.1-70b"


def question(*gpu: str, **more: object) -> Question:
    figures: dict[str, object] = {"users": 300, "context": 8192, "basis": "rented"}
    return ask(MODEL, gpu=gpu, **{**figures, **more})  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def mixed_plan() -> Plan:
    return search(question("h100", "h200"))


def mixed(plan: Plan) -> list[Design]:
    return [design for design in plan.designs if design.mixed]


def test_prefill_and_decode_may_run_on_different_parts() -> None:
    plan = mixed_plan()
    ways = {(d.prefill_accelerator.name, d.accelerator.name) for d in mixed(plan) if d.prefill_accelerator}
    assert ways == {("h100_sxm", "h200_sxm"), ("h200_sxm", "h100_sxm")}
    for design in mixed(plan):
        assert design.split
        assert sum(count for _, count in design.parts) == design.devices
        assert f"prefill on {design.accelerators[1].name}" in design.name
        assert {name.strip() for name in design.hardware.split("+")} == {a.name for a in design.accelerators}
        slo = plan.question.slo
        assert slo.tpot is not None
        assert design.tpot.mean <= slo.tpot


def test_mixed_designs_are_ranked_by_cost_with_the_rest() -> None:
    plan = mixed_plan()
    prices = [d.cost.per_million_output.mean for d in plan.designs if d.cost is not None]
    assert prices == pytest.approx(sorted(prices))
    for design in mixed(plan):
        assert design.cost is not None
        by_hand = sum(count * (part.price_rented or 0.0) for part, count in design.parts)
        assert design.cost.per_hour == pytest.approx(by_hand)
        assert design.energy is not None
        watts = sum(count * (part.watts or 0.0) for part, count in design.parts)
        assert design.energy.kilowatts == pytest.approx(watts / 1e3)
        assert paying(plan.question, design).rented == pytest.approx(by_hand)


def test_a_part_without_a_price_leaves_the_design_unpriced() -> None:
    asked = question("h100", "h200")
    parts = tuple(replace(a, price_rented=None) if a.name == "h200_sxm" else a for a in asked.accelerators)
    plan = search(replace(asked, accelerators=parts))
    assert mixed(plan)
    assert all(design.cost is None for design in mixed(plan))


def test_the_transfer_between_nodes_counts_at_the_slower_side() -> None:
    asked = question("h100", "h200", ttft=None, split="only")
    plan = search(asked)
    design = mixed(plan)[0]
    slow = replace(design.accelerator, nic=_slower(design.accelerator))
    prefill, decode = candidate_of(asked, design, first=True), candidate_of(asked, design)
    before = hand_off_seconds(asked, prefill, decode)
    added = hand_off_seconds(asked, prefill, replace(decode, accelerator=slow)) - before
    assert added > 0.1
    parts = tuple(slow if a.name == slow.name else a for a in asked.accelerators)
    again = {_shape(d): d for d in mixed(search(replace(asked, accelerators=parts)))}
    after = again[_shape(design)]
    # Without a target for it, the first token decides nothing: the same workers, later by the slower transfer.
    assert (after.replicas, after.prefill_replicas) == (design.replicas, design.prefill_replicas)
    assert after.ttft.mean - design.ttft.mean == pytest.approx(added)


def _slower(part: Accelerator) -> Link:
    assert part.nic is not None
    return replace(part.nic, bandwidth=part.nic.bandwidth / 1000)


def _shape(design: Design) -> tuple[object, ...]:
    return design.hardware, design.layout, design.prefill, design.weights, design.kv_dtype


def test_a_part_without_a_network_is_never_mixed() -> None:
    asked = question("h100", "h200")
    parts = tuple(replace(a, nic=None) if a.name == "h200_sxm" else a for a in asked.accelerators)
    assert not mixed(search(replace(asked, accelerators=parts)))


@pytest.mark.parametrize(
    ("gpu", "engine", "version", "allowed"),
    [
        (("h100", "l40s"), "vllm", None, True), (("h100", "l40s"), "vllm", "0.12.0", False),
        (("h100", "l40s"), "sglang", None, False), (("h100", "h200"), "sglang", None, True),
        (("h100", "b200"), "trtllm", None, True), (("h100", "mi300x"), "vllm", None, False),
        (("h100", "b200"), "vllm", None, True),
    ],
)  # fmt: skip
def test_the_engine_decides_what_may_mix(
    gpu: tuple[str, str], engine: str, version: str | None, allowed: bool
) -> None:
    plan = search(question(*gpu, engine=engine, engine_version=version, split="only", ttft=30.0))
    assert bool(mixed(plan)) == allowed


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("model", [MODEL, "gpt-oss-120b", "qwen3-30b-a3b"])
def test_tensor_degrees_of_a_split_are_those_the_engine_hands_over_between(engine: str, model: str) -> None:
    """vLLM's NIXL connector fans out only (llm-d#2187); SGLang has no windows over unequal ones (sglang#38552)."""
    plan = search(ask(model, gpu=["h100"], users=200, context=4096, split="only", engine=engine, ttft=60.0))
    assert plan.designs
    for design in plan.designs:
        able = plan.question.capability_for(design.accelerator)
        assert design.prefill is not None
        assert hand_over_problem(able, plan.question.model, design.prefill, design.layout) is None


def test_many_accelerators_are_not_paired() -> None:
    names = list(load_catalog().accelerators)[: MAX_MIXED + 1]
    plan = search(question(*dict.fromkeys(["h100", "h200", *names])))
    assert not mixed(plan)


def test_no_mixed_design_where_a_split_is_ruled_out() -> None:
    assert not mixed(search(question("h100", "h200", split="never")))


def test_mixed_pools_are_less_certain_than_either_alone() -> None:
    plan = search(question("h100", "h200", split="only"))
    widest = {d.hardware: [] for d in plan.designs}  # type: dict[str, list[float]]
    for d in plan.designs:
        widest[d.hardware].append(d.ttft.high / d.ttft.low)
    for design in mixed(plan):
        assert "mixed hardware" in {c.topic for c in cautions(plan, design)}
        alone = [min(widest[a.name]) for a in design.accelerators if a.name in widest]
        assert design.ttft.high / design.ttft.low > min(alone)


def _first_mixed(plan: Plan) -> Plan:
    """The plan as if its first mixed design were the best."""
    entry = next(e for e in plan.ranked if e.design.mixed)
    rest = tuple(e for e in plan.ranked if e is not entry)
    return replace(plan, ranked=(entry, *rest))


def test_the_explanation_says_what_mixing_takes_against_one_part() -> None:
    plan = _first_mixed(mixed_plan())
    best = plan.best
    assert best is not None
    assert best.cost is not None
    (line,) = [text for text in explain(plan, sensitivity=False).splitting if text.startswith("Prefill runs on")]
    found = re.fullmatch(
        r"Prefill runs on (\S+) and decode on (\S+), over the network between them: ([\d,]+) devices against "
        r"([\d,]+), \$([\d.,]+) an hour against \$([\d.,]+) on (\S+) alone \((.+)\)\.",
        line,
    )
    assert found is not None, line
    single = next(d for d in plan.designs if not d.mixed)
    assert single.cost is not None
    assert (found[1], found[2]) == (best.accelerators[1].name, best.accelerator.name)
    assert (int(found[3].replace(",", "")), int(found[4].replace(",", ""))) == (best.devices, single.devices)
    assert float(found[5].replace(",", "")) == pytest.approx(best.cost.per_hour, abs=0.6)
    assert float(found[6].replace(",", "")) == pytest.approx(single.cost.per_hour, abs=0.6)
    assert (found[7], found[8]) == (single.accelerator.name, single.name)


def test_nothing_on_one_part_is_said_too() -> None:
    plan = _first_mixed(mixed_plan())
    only = replace(plan, ranked=tuple(e for e in plan.ranked if e.design.mixed))
    text = "\n".join(explain(only, sensitivity=False).splitting)
    assert "no design on one kind of accelerator meets the targets" in text


def test_each_pool_is_emitted_for_its_own_part() -> None:
    plan = search(question("h100", "l40s", split="only", ttft=30.0, engine_version="0.33.0"))
    design = mixed(plan)[0]
    first = design.prefill_accelerator
    assert first is not None
    text = emit(plan, "vllm", MODEL, design, serve_model="weights")
    commands = [command for command in words(text) if command[:2] == ["vllm", "serve"]]
    assert {option(command, "--attention-backend") for command in commands} == {"FLASHINFER"}
    degrees = {option(command, "--tensor-parallel-size") for command in commands}
    tp = (design.layout.tp, design.prefill.tp if design.prefill else 1)
    assert degrees == {str(degree) if degree > 1 else None for degree in tp}
    assert f"each on {first.name} devices" in text
    assert f"each on {design.accelerator.name} devices" in text
    documents = list(yaml.safe_load_all(emit(plan, "k8s", MODEL, design, serve_model="weights")))
    selectors = {
        document["metadata"]["name"].rsplit("-", 1)[-1]: _selector(document)
        for document in documents
        if document["kind"] in ("Deployment", "LeaderWorkerSet")
    }
    assert selectors["prefill"] != selectors["decode"]


def _selector(document: dict[str, object]) -> object:
    spec = document["spec"]
    assert isinstance(spec, dict)
    if document["kind"] == "Deployment":
        return spec["template"]["spec"].get("nodeSelector")
    return spec["leaderWorkerTemplate"]["leaderTemplate"]["spec"].get("nodeSelector")


def test_same_architectures_need_no_attention_backend() -> None:
    plan = mixed_plan()
    assert "attention-backend" not in emit(plan, "vllm", MODEL, mixed(plan)[0], serve_model="weights")


def test_a_mixed_design_is_in_the_table_and_the_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plan = mixed_plan()
    data = plan_data(_first_mixed(plan), top=3)
    first = data["designs"][0]  # type: ignore[index]
    assert first["prefill_accelerator"] != first["accelerator"]
    assert sum(part["devices"] for part in first["parts"]) == first["devices"]
    command = f"plan {MODEL} --gpu h100,h200 --users 300 --context 8k --rented --split only --quick --top 50"
    with pytest.raises(SystemExit) as done:
        main(command.split())
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert re.search(r"tp\d on h[12]00_sxm \+ \d+ × tp\d", printed)
