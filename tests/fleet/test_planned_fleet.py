"""Fault 3 of issue 14: what `--emit shoal` prints is a `fleet.yaml` that `shoal serve` accepts and serves."""

import re
from pathlib import Path

import httpx
import pytest
import yaml
from e2ekit import eventually
from fleet_kit import fleet_process
from rich.console import Console

from shoal.cli import main
from shoal.cli.serve_fleet import serve_file
from shoal.fleet.config_file import load_config
from shoal.fleet.machine import check_machine
from shoal.plan.api import ask
from shoal.plan.designs import Design, Plan
from shoal.plan.emit import emit
from shoal.plan.search import search
from shoal.specs.errors import SpecError


def plan_of(name: str, gpu: str, **more: object) -> Plan:
    given: dict[str, object] = {"users": 8, "context": 1024, "ttft": 60.0, "tpot": 2.0, **more}
    return search(ask(name, gpu=[gpu], **given))  # type: ignore[arg-type]


def checked(text: str, folder: Path) -> str:
    """What `shoal serve --config FILE --check` prints; raises where it refuses."""
    path = folder / "fleet.yaml"
    path.write_text(text)
    check_machine(load_config(path))
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    serve_file(console, str(path), {}, True, None, None)
    return console.export_text()


def spread(plan: Plan) -> list[Design]:
    """Designs that differ in what is emitted: one for each format, cache, layout and number of replicas."""
    kinds: dict[tuple[object, ...], Design] = {}
    for d in plan.designs:
        if d.weights.native or d.weights.name in ("int8", "int4", "fp8"):
            key = (d.weights.name, d.kv_dtype, d.layout, d.split, d.replicas > 1)
            kinds.setdefault(key, d)
    return list(kinds.values())[:60]


def text_of(plan: Plan, design: Design) -> str | None:
    """The file; None where it is refused: weights to be converted first, or a hand-over that no fleet can do."""
    try:
        return emit(plan, "shoal", design=design)
    except SpecError as error:
        if error.field == "emit":
            return None
        raise


@pytest.mark.parametrize(
    ("name", "gpu", "more"),
    [("smollm2-135m", "cpu_2core", {}), ("smollm2-135m", "cpu", {"users": 900}),
     ("qwen3-30b-a3b", "cpu", {"users": 2}), ("llama-3.1-8b", "cpu", {"split": "only"}),
     ("llama-3.1-8b", "h100", {"users": 20}), ("llama-3.1-70b", "h200", {"split": "only", "users": 40}),
     ("deepseek-v3", "h200", {"users": 200}), ("llama-3.1-8b", "h100", {"engine": "sglang"}),
     ("llama-3.1-8b", "h100", {"engine": "trtllm"})],
)  # fmt: skip
def test_serve_accepts_every_emitted_fleet(name: str, gpu: str, more: dict[str, object], tmp_path: Path) -> None:
    plan = plan_of(name, gpu, **more)
    designs = spread(plan)
    assert designs
    accepted = 0
    for design in designs:
        text = text_of(plan, design)
        if text is None:
            continue
        shown = checked(text, tmp_path)
        accepted += 1
        assert "listen" in shown
        content = yaml.safe_load(text)
        for pool in content["pools"]:
            assert pool["engine"] in ("shoal", "vllm", "sglang", "openai")
            if "urls" not in pool:
                assert pool["options"]["max_model_len" if pool["engine"] != "sglang" else "context_length"] == 1024
            if pool["engine"] == "shoal":
                assert pool.get("options", {}).get("quantize") == (
                    design.weights.name if design.weights.name in ("int8", "int4") and "urls" not in pool else None
                )
                assert "device" not in pool.get("options", {})
        roles = [pool.get("role", "both") for pool in content["pools"]]
        assert set(roles) == ({"prefill", "decode"} if design.split else {"both"})
        started = sum(pool.get("replicas", 1) for pool in content["pools"] if "urls" not in pool)
        attached = sum(len(pool.get("urls", ())) for pool in content["pools"])
        assert started + attached == design.replicas + design.prefill_replicas
    assert accepted


def test_replicas_on_one_server_have_devices_of_their_own() -> None:
    plan = plan_of("llama-3.1-8b", "h100", users=200, context=8192, tpot=0.03)
    design = next(d for d in plan.designs if d.replicas > 1 and d.devices <= 8 and d.weights.native)
    pools = yaml.safe_load(emit(plan, "shoal", design=design))["pools"]
    seen = [device for pool in pools for device in pool["environment"]["CUDA_VISIBLE_DEVICES"].split(",")]
    assert seen == [str(n) for n in range(design.devices)]


def test_splits_of_our_own_engine_stay_on_one_server() -> None:
    plan = plan_of("smollm2-135m", "cpu", split="only", users=4)
    assert plan.designs
    for design in plan.designs:
        assert design.layout.world == 1
        assert design.devices <= design.accelerator.devices_per_node


def test_the_command_line_prints_what_serve_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "plan smollm2-135m --gpu cpu_2core --users 2 --context 512 --tpot 500ms --weights int8 --emit shoal"
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert not ended.value.code
    assert "quantize int8" in checked(capsys.readouterr().out, tmp_path)


@pytest.mark.realmodel
@pytest.mark.timeout(280)
def test_a_plan_for_processors_is_served(smollm2_path: Path, tmp_path: Path) -> None:
    """Real processes: the emitted file is served, holds what the plan says, and answers."""
    plan = plan_of("smollm2-135m", "cpu_2core", users=2, context=512, weights=["int8"])
    assert plan.best is not None
    text = emit(plan, "shoal", str(smollm2_path))
    path = tmp_path / "fleet.yaml"
    path.write_text(re.sub(r"port: \d+", "port: 0", text))
    with fleet_process("--config", str(path), home=tmp_path) as served:
        eventually(lambda: served.whole(plan.best.replicas), "every replica is ready", 240)  # type: ignore[union-attr]
        name = httpx.get(f"{served.url}/v1/models", timeout=30, trust_env=False).json()["data"][0]["id"]
        answer = served.complete("A shoal is", 8, model=name)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 8
        held = [replica["kv_capacity_tokens"] for replica in served.view()["replicas"]]
        wanted = plan.best.sequences * plan.question.held_tokens
        assert all(wanted <= tokens <= 1.3 * wanted + 128 for tokens in held), (held, wanted)
