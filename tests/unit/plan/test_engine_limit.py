"""Fault 4 of issue 14: plan, fit and the emitted command size memory at the same limit on sequences."""

import re
import shlex

import pytest

from shoal.cli.calc_layout import LayoutFit, fit_layout
from shoal.plan.api import ask
from shoal.plan.candidates import Candidate, gate
from shoal.plan.emit import emit
from shoal.plan.explain import explain
from shoal.plan.search import search
from shoal.plan.sequences import Stored, design_memory, memory_at, size_replica
from shoal.specs import catalog_model
from shoal.specs.catalog import load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout


def fit(**given: object) -> dict[str, object]:
    asked: dict[str, object] = {
        "model": "gpt-oss-120b", "gpu": "h100", "layout": Layout(), "dtype": None, "kv_dtype": "bf16",
        "context": "8K", "engine": None, "version": None, "memory_utilization": None, "max_num_seqs": None,
        "catalogs": (), **given,
    }  # fmt: skip
    return fit_layout(LayoutFit(**asked))[1]  # type: ignore[arg-type]


def test_gpt_oss_on_one_h100_has_room_for_what_the_command_says() -> None:
    """14,166 tokens were planned for 1,024 sequences where the command said 23, which leaves 15 times as many."""
    plan = search(ask("gpt-oss-120b", gpu=["h100"], users=23, context=8192, weights=["checkpoint"], tpot=None))
    design = next(d for d in plan.designs if d.layout.world == 1 and d.kv_dtype == "bf16")
    assert design.memory_batch >= 23
    text = emit(plan, "vllm", design=design)
    told = int(re.search(r"--max-num-seqs (\d+)", text)[1])  # type: ignore[index]
    assert told == design.sequences
    room = design_memory(plan.question, design).worst.kv_room
    same = fit(max_num_seqs=told)
    assert same["kv_room"] == pytest.approx(room)
    assert same["max_batch"] >= told  # type: ignore[operator]
    many = fit(max_num_seqs=1024)
    assert same["kv_tokens"] > 10 * many["kv_tokens"]  # type: ignore[operator]


def test_fit_tells_the_engine_as_many_sequences_as_it_then_holds() -> None:
    found = fit()
    assert found["verdict"] == "fits"
    assert found["max_batch"] == found["max_num_seqs"]
    assert fit(max_num_seqs=found["max_num_seqs"] + 1)["max_batch"] <= found["max_num_seqs"]  # type: ignore[operator]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "qwen3-32b"])
@pytest.mark.parametrize("held", [512.0, 8192.0, 60_000.0])
def test_the_limit_is_the_largest_that_memory_carries(engine: str, name: str, held: float) -> None:
    constants, model = load_catalog().engine(engine), catalog_model(name)
    device, stored = load_catalog().accelerator("h100").device_bytes, Stored()
    layout = Layout(tp=2)
    sized = size_replica(model, layout, device, constants, stored, held=held, longest=held)
    assert sized.memory.max_batch(held) >= sized.sequences
    most = constants.defaults(device)[0]
    assert sized.bounded == (sized.sequences < most)
    if sized.bounded:
        more = memory_at(model, layout, device, constants, stored, sized.sequences + 1)
        assert more.max_batch(held) < sized.sequences + 1


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "deepseek-v3"])
@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_no_command_asks_for_more_than_memory_holds(name: str, target: str) -> None:
    """Every design: the emitted limit is the design's, memory at it holds as many, and the words say the same."""
    plan = search(ask(name, gpu=["h200"], users=64, context=8192, engine=target))
    flag = "--max-num-seqs" if target == "vllm" else "--max-running-requests"
    for design in plan.designs[:40]:
        memory = design_memory(plan.question, design)
        assert memory.max_batch(plan.question.held_tokens) >= design.sequences * design.layout.dp
        assert design.sequences * design.layout.dp >= design.load or design.split
        words = shlex.split(emit(plan, target, design=design).replace("\\\n", " "), comments=True)
        told = [int(words[i + 1]) for i, word in enumerate(words) if word == flag]
        share = design.layout.dp if target == "sglang" else 1
        assert design.sequences * share in told
    lines = "\n".join(explain(plan, sensitivity=False).lines())
    assert plan.best is not None
    assert f"at most {plan.best.sequences:,} sequence" in lines


def test_the_options_reach_plan_fit_and_command() -> None:
    question = ask(
        "llama-3.1-8b", gpu=["h100"], users=16, context=8192, memory_utilization=0.7, max_num_seqs=12, split="never"
    )
    assert all(c.sequences <= 12 for c in gate(question) if isinstance(c, Candidate))
    plan = search(question)
    assert plan.best is not None
    text = emit(plan, "vllm")
    assert "--gpu-memory-utilization 0.7" in text
    assert plan.best.sequences <= 12
    wide = search(ask("llama-3.1-8b", gpu=["h100"], users=16, context=8192, split="never"))
    assert wide.best is not None
    narrow_room = design_memory(question, plan.best).worst.kv_room
    assert narrow_room < design_memory(wide.question, plan.best).worst.kv_room
    assert fit(model="llama-3.1-8b", memory_utilization="70%")["kv_room"] < fit(model="llama-3.1-8b")["kv_room"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("given", "field"),
    [({"memory_utilization": 1.5}, "memory_utilization"), ({"memory_utilization": 0.0}, "memory_utilization"),
     ({"max_num_seqs": 0}, "max_num_seqs"), ({"max_num_seqs": 1 << 20}, "max_num_seqs")],
)  # fmt: skip
def test_options_out_of_range_are_refused(given: dict[str, float], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        ask("llama-3.1-8b", gpu=["h100"], users=1, context=2048, **given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_fit_refuses_what_the_engine_refuses() -> None:
    """`calc fit --tp 3` on 32 heads said that it fits."""
    with pytest.raises(SpecError, match=r"vllm 0\.33\.0 runs") as caught:
        fit(model="llama-3.1-8b", layout=Layout(tp=3))
    assert caught.value.field == "layout"
    assert fit(model="smollm2-135m", gpu="cpu", layout=Layout(tp=2))["verdict"] == "fits"
    for given, field in (
        ({"dtype": "int8", "gpu": "b200"}, "dtype"),
        ({"kv_dtype": "fp8", "gpu": "a100"}, "kv_dtype"),
        ({"engine": "trtllm", "gpu": "mi300x"}, "engine"),
        ({"engine": "shoal"}, "engine"),
        ({"version": "0.9"}, "engine_version"),
    ):
        with pytest.raises(SpecError) as refused:
            fit(model="llama-3.1-8b", **given)
        assert refused.value.field == field
