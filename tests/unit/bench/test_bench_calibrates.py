"""bench → calibrate → plan: a report of `shoal bench` becomes constants that a plan reads (issue 14, fault 7)."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchkit import record, result

from shoal.cli.entry import main
from shoal.plan.api import ask, find_model
from shoal.plan.artifact import read_artifact, shipped
from shoal.plan.calibrate import rescale
from shoal.plan.deployment import Deployment, Pool
from shoal.plan.estimator import ServingEstimator
from shoal.plan.intervals import LEVELS
from shoal.plan.readers import Observation, read_observations
from shoal.plan.search import search
from shoal.plan.work import model_work
from shoal.specs.catalog import load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.workload.report.document import Report
from shoal.workload.report.files import write_json
from shoal.workload.summary import summarize

LOADS = ((1, 128, 64), (2, 128, 64), (4, 128, 64), (8, 128, 64), (1, 512, 32), (4, 512, 32))
"""(requests in flight, prompt, answer) of the runs that calibrate."""


def _tpot(users: float, tokens: float) -> float:
    """Seconds that an imagined processor takes for a token: weights, then each sequence and its cache."""
    return 0.045 + users * (0.004 + 4e-6 * tokens)


def _ttft(users: float, prompt: float) -> float:
    return 0.05 + prompt * 0.004 * (1 + 0.3 * (users - 1))


def _report(path: Path, users: int, prompt: int, answer: int) -> Path:
    """What `shoal bench run -c USERS --json` writes of a run with exactly these times."""
    ttft, gap = _ttft(users, prompt), _tpot(users, prompt + answer / 2)
    records = [
        record(n, ttft=ttft, gap=gap, tokens=answer, output_tokens=answer, prompt_tokens=prompt) for n in range(12)
    ]
    summary = summarize(result(records, 0.0, 60.0, concurrency=users, requested_rate=None))
    write_json(path, Report("run", "now", "shoal bench run", (), (), ()), {"run": summary})
    return path


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def _template(machine: str = "cpu_2core") -> Deployment:
    work = model_work(find_model("smollm2-135m"))
    return Deployment(work, load_catalog().accelerator(machine), "fp32", "shoal", Pool(Layout()), 128.0, 64.0, 1.0)


def test_a_report_is_read_as_what_it_measured(tmp_path: Path) -> None:
    (seen,) = read_observations(_report(tmp_path / "run.json", 4, 128, 64))
    assert (seen.concurrency, seen.input_tokens, seen.output_tokens) == (4, 128, 64)
    assert seen.tpot == pytest.approx(_tpot(4, 160), rel=1e-6)
    assert seen.ttft == pytest.approx(_ttft(4, 128), rel=1e-6)


def test_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"schema": "shoal.bench/9", "results": {}}))
    with pytest.raises(SpecError, match=r"shoal\.bench/1"):
        read_observations(path)


def test_bench_calibrate_and_plan_in_three_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [str(_report(tmp_path / f"{n}.json", *load)) for n, load in enumerate(LOADS)]
    out = str(tmp_path / "mine.json")
    options = ["--model", "smollm2-135m", "--gpu", "cpu_2core", "--precision", "fp32"]
    assert _run("plan", "calibrate", *reports, *options, "--out", out) == 0
    assert f"--constants {out}" in capsys.readouterr().out
    asked = ["smollm2-135m", "--gpu", "cpu_2core", "--users", "3", "--input", "256", "--output", "96"]
    limits = ["--weights", "float32", "--tpot", "none", "--ttft", "none"]
    assert _run("plan", *asked, *limits, "--constants", out, "--quick", "--json") == 0
    design = json.loads(capsys.readouterr().out)["designs"][0]
    # A workload that was not calibrated on, within the bars of must show 5.
    assert design["tpot_seconds"]["mean"] == pytest.approx(_tpot(3, 304), rel=0.10)
    assert design["ttft_seconds"]["mean"] == pytest.approx(_ttft(3, 256), rel=0.20)
    assert design["tpot_seconds"]["high"] / design["tpot_seconds"]["low"] < 1.6


def test_constants_of_one_machine_leave_the_others_alone(tmp_path: Path) -> None:
    observations = [Observation(u, _tpot(u, p + o / 2), _ttft(u, p), p, o) for u, p, o in LOADS]
    found = rescale(shipped(), _template(), observations)
    mine, before = ServingEstimator(found.artifact), ServingEstimator()
    other = replace(_template(), accelerator=load_catalog().accelerator("h100"), precision="fp8", backend="vllm")
    assert mine.estimate(other) == before.estimate(other)
    assert int(mine.familiarity(_template()).level) == len(LEVELS)
    # Another model on the same machine: the machine's constants, a stranger's interval.
    bigger = replace(_template(), model=model_work(find_model("qwen3-0.6b")))
    assert LEVELS[int(mine.familiarity(bigger).level)] == "model"
    assert not math.isclose(mine.estimate(bigger).tpot.mean, before.estimate(bigger).tpot.mean, rel_tol=0.02)
    # Other weights of the same model too: designs are compared on the same machine.
    narrow = replace(_template(), precision="int8")
    assert LEVELS[int(mine.familiarity(narrow).level)] == "model"
    assert mine.constants(narrow).step == mine.constants(_template()).step != before.constants(narrow).step
    # A second calibration of the machine takes the first one's place.
    again = rescale(found.artifact, _template(), [replace(o, tpot=2 * o.tpot) for o in observations])
    assert len(again.artifact.own) == 1
    assert again.tpot_factor == pytest.approx(2 * found.tpot_factor, rel=1e-6)


def test_what_calibrate_writes_is_what_ask_reads(tmp_path: Path) -> None:
    from shoal.plan.artifact import write_artifact

    observations = [Observation(u, _tpot(u, p + o / 2), _ttft(u, p), p, o) for u, p, o in LOADS]
    found = rescale(shipped(), _template(), observations)
    write_artifact(found.artifact, tmp_path / "c.json")
    assert read_artifact(tmp_path / "c.json").own == found.artifact.own
    question = ask(
        "smollm2-135m", gpu=["cpu_2core"], users=2, input_tokens=128, output_tokens=64, weights=["float32"],
        constants=tmp_path / "c.json", tpot=None,
    )  # fmt: skip
    best = search(question).best
    assert best is not None
    assert best.tpot.mean == pytest.approx(_tpot(2, 160), rel=0.05)
