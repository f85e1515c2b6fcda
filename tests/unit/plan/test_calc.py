"""The calculators: refusals by field, and the commands as a user runs them."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from shoal.cli.calc import app
from shoal.cli.entry import main
from shoal.plan import calc
from shoal.specs.errors import SpecError


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: calc.weight_bytes(-70e9, 2), "parameters"),
        (lambda: calc.weight_bytes(70e9, 0), "bytes_per_parameter"),
        (lambda: calc.weight_bytes(float("nan"), 2), "parameters"),
        (lambda: calc.weight_bytes(1e30, 2), "parameters"),
        (lambda: calc.gqa_bytes_per_token(0, 8, 128, 2), "layers"),
        (lambda: calc.gqa_bytes_per_token(80, -8, 128, 2), "kv_heads"),
        (lambda: calc.kv_bytes(327_680, 0, 1), "context"),
        (lambda: calc.kv_bytes(327_680, 8192, -1), "users"),
        (lambda: calc.devices_needed(1e9, 80e9, 1.0), "headroom"),
        (lambda: calc.devices_needed(1e9, 80e9, 20), "headroom"),
        (lambda: calc.devices_needed(1e9, 0), "device_bytes"),
        (lambda: calc.bubble(0, 4), "stages"),
        (lambda: calc.bubble(4, 0), "micro_batches"),
        (lambda: calc.handoff_seconds(68e9, -50e9), "bandwidth"),
        (lambda: calc.handoff_seconds(68e9, 50e9, efficiency=1.2), "efficiency"),
        (lambda: calc.handoff_seconds(68e9, 50e9, ports=0), "ports"),
        (lambda: calc.cost_per_day(8, -2), "price"),
        (lambda: calc.cost_per_million(8, 2, 0), "tokens_per_second"),
        (lambda: calc.cost_per_million(8, 2, 100, 0), "utilization"),
        (lambda: calc.usable_count(10_000, 8, 10, 8), "minimum"),
    ],
)
def test_what_cannot_be_is_refused_by_field(call: Callable[[], object], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        call()
    assert caught.value.field == field
    assert caught.value.accepted


def test_counts_on_either_side_of_a_whole_device() -> None:
    below, above = calc.devices_needed(5.999 * 64e9, 80e9), calc.devices_needed(6.001 * 64e9, 80e9)
    assert (below.label(), above.label()) == ("6 or 7 (too close to call)", "6 or 7 (too close to call)")
    assert calc.devices_needed(5.9 * 64e9, 80e9).label() == "6"
    assert calc.devices_needed(6.1 * 64e9, 80e9).label() == "7"
    assert calc.devices_needed(1e6, 80e9).label() == "1"


def test_a_streamed_handoff_exposes_its_last_layer_only() -> None:
    whole = calc.handoff_seconds(68e9, 50e9)
    assert calc.handoff_seconds(68e9, 50e9, overlapped_layers=126) == pytest.approx(whole / 126)
    assert calc.handoff_seconds(68e9, 50e9, ports=8, efficiency=0.5, latency=1) == pytest.approx(1 + whole / 4)


def test_counts_that_split() -> None:
    assert calc.usable_count(3, 64, 80, 8).count == 4
    assert "does not divide 64 heads" in calc.usable_count(3, 64, 80, 8).passed_over[0][1]
    assert calc.usable_count(9, 64, 80, 8).count == 16


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    loaded = json.loads(result.output)
    assert isinstance(loaded, dict)
    return loaded


def test_commands_answer_in_base_units() -> None:
    assert run("weights", "--params", "405B")["weight_bytes"] == 810e9
    kv = run("kv", "--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--context", "8K", "--users", "200")
    assert (kv["bytes_per_token"], kv["total_bytes"]) == (327_680, 327_680 * 8192 * 200)
    fit = run(
        "fit", "--params", "70B", "--memory", "141 GB", "--layers", "80", "--kv-heads", "8", "--head-dim", "128",
        "--users", "200",
    )  # fmt: skip
    assert (fit["count"], fit["too_close_to_call"]) == (7, True)
    assert run("bubble", "--stages", "4", "--micro-batches", "4")["idle_share"] == pytest.approx(3 / 7)
    moved = run("handoff", "--size", "67.6 GB", "--bandwidth", "100 Gb/s")
    assert moved["seconds"] == pytest.approx(5.408)
    paid = run("cost", "--devices", "1814", "--price", "2 USD/h", "--tokens-per-second", "4e6")
    assert paid["usd_per_day"] == 87_072


def test_commands_that_read_the_catalogue() -> None:
    fit = run("fit", "--model", "llama-3.1-70b", "--gpu", "h100", "--users", "200", "--tp", "8")
    assert fit["usable_count"] == 16
    layout = fit["layout"]
    assert isinstance(layout, dict)
    assert layout["verdict"] == "fits"
    too_big = run("fit", "--model", "llama-3.1-405b", "--gpu", "h100")["layout"]
    assert isinstance(too_big, dict)
    assert (too_big["verdict"], too_big["max_batch"]) == ("weights do not fit", 0)
    handoff = run("handoff", "--model", "llama-3.1-405b", "--context", "128K", "--gpu", "h100")
    assert handoff["seconds"] == pytest.approx(1.353, abs=0.001)
    assert run("cost", "--devices", "8", "--gpu", "h100", "--rented")["usd_per_device_hour"] == 2.0


def test_the_example_shows_both_close_calls() -> None:
    result = CliRunner().invoke(app, ["example"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert "6 or 7 (too close to call)" in result.output
    assert "3 or 4 (too close to call)" in result.output
    assert "537" in result.output.replace("536.9", "537")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["weights", "--params", "-70B"], ["params", "-70B"]),
        (["weights", "--params", "70GB"], ["params", "70GB", "70b"]),
        (["weights"], ["MODEL", "--params"]),
        (["weights", "--params", "7B", "--tp", "2"], ["MODEL"]),
        (["weights", "--params", "7B", "--dtype", "fp7"], ["fp7"]),
        (["weights", "--model", "llama-3.1-70"], ["llama-3.1-70b"]),
        (["weights", "--model", "llama-3.1-70b", "--tp", "128"], ["layout", "tp128", "nearest"]),
        (["kv", "--model", "llama-3.1-70b", "--context", "8G"], ["context", "8k"]),
        (["kv", "--model", "llama-3.1-70b", "--users", "0"], ["users"]),
        (["kv", "--model", "llama-3.1-70b", "--kv-dtype", "fp9"], ["kv_dtype", "fp9"]),
        (["kv", "--layers", "80"], ["kv-heads"]),
        (["fit", "--model", "llama-3.1-70b"], ["--gpu"]),
        (["fit", "--model", "llama-3.1-70b", "--memory", "80"], ["memory", "80 GB"]),
        (["fit", "--model", "llama-3.1-70b", "--gpu", "h1000"], ["h100"]),
        (["fit", "--model", "llama-3.1-70b", "--gpu", "h100", "--headroom", "1.2"], ["headroom", "1.2%"]),
        (["fit", "--model", "llama-3.1-70b", "--gpu", "h100", "--engine", "vlm"], ["vllm"]),
        (["handoff", "--size", "68 GB", "--bandwidth", "50 gb/s"], ["bandwidth", "case matters"]),
        (["handoff", "--size", "68 GB", "--gpu", "rtx_4090"], ["rtx_4090", "network"]),
        (["cost", "--devices", "8", "--gpu", "a100"], ["a100", "price"]),
    ],
)
def test_bad_input_says_what_is_accepted(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["calc", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for part in expected:
        assert part in said


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, shoal.plan, shoal.plan.memory, shoal.plan.calc, shoal.cli.calc, shoal.specs.catalog.models;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
