"""`shoal simulate` as a user types it."""

import json
from pathlib import Path

import pytest

from shoal.cli.entry import main

MODEL = ("--model", "llama-3.1-8b", "--gpu", "h100")
LOAD = ("--rate", "20", "-n", "80", "--input", "uniform:100:900", "--output", "40")
QUICK = (*MODEL, *LOAD, "--no-intervals")
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    code = done.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def result(capsys: Capture, *arguments: object) -> dict[str, object]:
    code, out, err = run(capsys, *arguments, "--json", "-")
    assert (code, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 200 * i,
            "input_length": 1300 + i,
            "output_length": 20,
            "hash_ids": [i % 3, 10, 100 + i],
        }
        for i in range(120)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_object_with_every_figure_and_its_interval(capsys: Capture, tmp_path: Path) -> None:
    found = result(capsys, *MODEL, "--replicas", 2, "--trace", mooncake(tmp_path))
    assert found["requests"] == 120
    assert 20 < found["simulated_seconds"] < 60  # type: ignore[operator]
    assert found["processor_seconds"] > 0  # type: ignore[operator]
    # Of three blocks, the first is new to a replica three times, and the second where another one stood before it.
    assert 0.5 < found["hit_rate"] < 0.8  # type: ignore[operator]
    assert found["goodput"] > 0  # type: ignore[operator]
    for name in ("ttft", "tpot", "e2e"):
        latency: dict[str, object] = found[name]  # type: ignore[assignment]
        assert latency["p50"] <= latency["p90"] <= latency["p99"]  # type: ignore[operator]
        for level in ("mean", "p50", "p90", "p99"):
            low, high = latency["low"][level], latency["high"][level]  # type: ignore[index]
            assert low < latency[level] < high


def test_the_same_seed_gives_the_same_figures(capsys: Capture) -> None:
    first, again = (result(capsys, *QUICK, "--seed", 4) for _ in range(2))
    other = result(capsys, *QUICK, "--seed", 5)
    for found in (first, again, other):
        del found["processor_seconds"], found["command"], found["facts"]
    assert first == again
    assert first["ttft"] != other["ttft"]


def test_intervals_hold_the_uncertainty_of_step_times(capsys: Capture) -> None:
    narrow, wide = result(capsys, *QUICK), result(capsys, *MODEL, *LOAD)
    for key in ("mean", "p99"):
        assert narrow["e2e"][key] == wide["e2e"][key]  # type: ignore[index]
        # A step may take 1.6 times as long.
        assert wide["e2e"]["high"][key] > 1.3 * wide["e2e"][key]  # type: ignore[index]
        assert narrow["e2e"]["high"][key] < 1.3 * narrow["e2e"][key]  # type: ignore[index]


def test_several_seeds_are_averaged(capsys: Capture) -> None:
    each = [result(capsys, *QUICK, "--seed", s)["e2e"]["mean"] for s in (3, 4, 5)]  # type: ignore[index]
    found = result(capsys, *QUICK, "--seed", 3, "--seeds", 3)
    assert found["requests"] == 240
    assert found["e2e"]["mean"] == pytest.approx(sum(each) / 3)  # type: ignore[index]
    assert found["e2e"]["low"]["mean"] < min(each)  # type: ignore[index]


def test_a_run_shows_its_tables_and_writes_its_files(capsys: Capture, tmp_path: Path) -> None:
    files = {name: tmp_path / f"r.{name}" for name in ("json", "csv", "jsonl", "html")}
    options = [part for name, path in files.items() for part in (f"--{name}", path)]
    code, out, _ = run(capsys, *QUICK, "--replicas", 3, "--ttft", 20, "--priorities", "0=1,5=1", *options)
    assert code == 0
    for part in (
        "3 x llama-3.1-8b",
        "tokens of KV",
        "80 measured",
        "goodput",
        "priority 5",
        "Replicas",
        "Why",
        "r2",
    ):
        assert part in out, part
    lines = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert len(lines) == 80
    assert {line["replica"] for line in lines} == {"r0", "r1", "r2"}
    assert len(files["csv"].read_text().splitlines()) == 81
    page = files["html"].read_text()
    for plot in ("Requests running", "Cache in use", "Latency, cumulative"):
        assert plot in page
    assert json.loads(files["json"].read_text())["requests"] == 80


def test_faults_happen_and_are_named(capsys: Capture) -> None:
    found = result(capsys, *QUICK, "--replicas", 2, "--fault", "crash@2:r0", "--fault", "slow@1:r1+2x9")
    assert found["crashes"] == 1
    assert any("fault: r0" in slow["why"] for slow in found["slowest"])  # type: ignore[index, attr-defined]
    assert found["outcomes"] == {"ok": 80}


def test_overload_shows_as_overload_and_ends_at_the_horizon(capsys: Capture) -> None:
    load = ("--rate", 400, "-n", 2000, "--input", 4000, "--output", 100, "--no-intervals", "--timeout", 1000)
    code, out, _ = run(capsys, *MODEL, *load, "--horizon", 20)
    assert code == 0
    assert "stopped at its horizon" in out
    assert "PARTIAL" in out
    code, out, _ = run(capsys, *MODEL, *load, "--ttft", 1000, "--kv-blocks", 2000, "-n", 400)
    assert "the queue grew" in out or "too short to tell" in out
    assert "gateway queue" in out or "replica queue" in out


def test_a_fleet_file_with_hardware_is_simulated(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        """
pools:
  - {name: big, model: llama-3.1-8b, engine: vllm, replicas: 2, hardware: {gpu: h100, weights: fp8},
     options: {max_num_seqs: 8, kv_cache_dtype: fp8}}
  - {name: small, model: smollm2-135m, options: {num_blocks: 512, max_model_len: 2048}, hardware: {gpu: cpu}}
router: {policy: least_load}
"""
    )
    found = result(capsys, path, *LOAD, "--models", "llama-3.1-8b=3,smollm2-135m=1", "--no-intervals")
    facts: dict[str, str] = found["facts"]  # type: ignore[assignment]
    assert "fp8 weights, fp8 cache" in facts["pool big"]
    assert "8,176 tokens of KV" in facts["pool small"]
    assert facts["router"] == "least_load"
    assert [r["name"] for r in found["replicas"]] == ["big-0", "big-1", "small-0"]  # type: ignore[index, attr-defined]
    path.write_text("pools: [{name: a, model: llama-3.1-8b, engine: vllm}]")
    code, _, err = run(capsys, path, *LOAD)
    assert code == 2
    assert "pools[0].hardware" in err
    assert result(capsys, path, "--gpu", "l40s", *LOAD, "--no-intervals")["requests"] == 80


def test_a_plan_is_simulated_under_its_own_traffic(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(SystemExit):
        main(
            [
                "plan",
                "llama-3.1-8b",
                "--gpu",
                "h100",
                "--users",
                "8",
                "--context",
                "1k",
                "--split",
                "never",
                "--json",
            ]
        )
    path.write_text(capsys.readouterr().out)
    found = result(capsys, path, "-n", 24, "--no-intervals")
    assert "closed loop, 8 in flight; input 768, output 256" in str(found["load"])
    code, _, err = run(capsys, path, "--design", 99)
    assert code == 2
    assert "one of the" in err
    path.write_text("{}")
    assert run(capsys, path)[0] == 2


def test_a_sweep_finds_the_highest_rate(capsys: Capture) -> None:
    arguments = (*MODEL, "-n", 60, "--input", 500, "--output", 50, "--tpot", 12, "--start", 8, "--tolerance", 0.5)
    found = result(capsys, "sweep", *arguments)["results"]
    assert found["best"] >= 8  # type: ignore[index]
    assert found["failing"] > found["best"]  # type: ignore[index]
    code, _, err = run(capsys, "sweep", *MODEL)
    assert code == 2
    assert "objective" in err


def test_a_comparison_pairs_two_fleets_over_seeds(capsys: Capture) -> None:
    sides = ("replicas=1", "replicas=4,max-num-seqs=64")
    load = ("--rate", 60, "-n", 60, "--input", 2000, "--output", 40, "--rounds", 3)
    found = result(capsys, "compare", *sides, *MODEL, *load)["results"]
    tpot = next(r for r in found["ratios"] if r["metric"] == "TPOT p50")  # type: ignore[index]
    assert tpot["verdict"] == "better"
    assert tpot["ratio"]["high"] < 1
    code, out, _ = run(capsys, "compare", *sides, *MODEL, *load)
    assert code == 0
    assert "B is better" in out


def test_rounds_of_a_trace_are_parts_of_it(capsys: Capture, tmp_path: Path) -> None:
    trace = ("--trace", mooncake(tmp_path))
    arguments = ("compare", "replicas=1", "replicas=3", *MODEL, *trace, "--speed", 10, "--rounds", 4)
    found = result(capsys, *arguments)["results"]
    assert [r["a"]["requests"] for r in found["rounds"]] == [30] * 4  # type: ignore[index]
    tpot = next(r for r in found["ratios"] if r["metric"] == "TPOT p50")  # type: ignore[index]
    # Parts differ, so that their ratios do: a trace that is repeated would be sure of everything.
    assert tpot["ratio"]["low"] < tpot["ratio"]["value"] < tpot["ratio"]["high"]
    code, _, err = run(capsys, *MODEL, *trace, "--seeds", 2)
    assert code == 2
    assert "the same load for every seed" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--model and --gpu"),
        ((*MODEL, "--replicas", "0"), "replicas: 0"),
        ((*MODEL, "--layout", "tp=3"), "layout"),
        (("--model", "llama-3.1-70b", "--gpu", "l4", "--layout", "tp=1"), "weights do not fit"),
        (("--model", "nonsense", "--gpu", "h100"), "nonsense"),
        (("--model", "llama-3.1-8b", "--gpu", "h900"), "h900"),
        ((*MODEL, "--router", "best"), "best"),
        ((*MODEL, "--fault", "crash"), "fault: 'crash'"),
        ((*MODEL, "--fault", "crash@1:r9"), "r9"),
        ((*MODEL, "--kv-blocks", "1"), "kv_blocks: 1"),
        ((*MODEL, "--rate", "1", "--concurrency", "1"), "concurrency"),
        (("missing.yaml",), "missing.yaml"),
        (("missing.json",), "missing.json"),
        (("compare", "replicas=x", "replicas=1", *MODEL), "replicas: 'x'"),
        (("compare", "colour=red", "replicas=1", *MODEL), "colour=red"),
    ],
)
def test_bad_input_is_one_line_and_a_code(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    load = () if arguments == () or arguments[0].startswith("missing") else ("-n", "5")
    code, out, err = run(capsys, *(arguments or ("run",)), *load)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_trace_line_that_cannot_be_read_is_named(capsys: Capture, tmp_path: Path) -> None:
    path = mooncake(tmp_path)
    path.write_text(path.read_text() + '{"timestamp": "soon", "input_length": 1, "output_length": 1}\n')
    code, _, err = run(capsys, *MODEL, "--trace", path)
    assert code == 2
    assert "trace.jsonl: line 121" in err
