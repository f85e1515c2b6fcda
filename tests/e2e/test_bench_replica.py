"""`shoal bench` against a real replica over real sockets: lengths, caches, commands, Ctrl-C."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2ekit import Running, eventually

from shoal.bench.job import Job
from shoal.bench.protocol import Protocol, ProtocolOptions
from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.cli import main
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Shape, at_times, made_up
from shoal.workload.objectives import Objectives
from shoal.workload.run import RunOptions
from shoal.workload.summary import summarize
from shoal.workload.traces import Cut, trace_load

SHAPE = Shape(parse_lengths("uniform:24:60", "input"), parse_lengths("6", "output"))


@dataclass
class Done:
    code: object
    out: str
    err: str


class Bench:
    """`shoal bench` in this process: a new one would import everything again, for every test."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["shoal", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return Done(ended.value.code, captured.out, captured.err)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(capsys, monkeypatch)


async def test_lengths_are_exact_and_pinned(tiny: Running) -> None:
    async with await Target.open(TargetOptions(tiny.url)) as target:
        load = at_times(made_up(SHAPE, 12, 0), "poisson", 60, 0)
        done = await Runner(target, RunOptions(salt="lengths")).run(load)
    assert [r.error for r in done.records if not r.ok] == []
    assert [r.prompt_tokens for r in done.records] == [
        sum(part.tokens for part in s.turns[0].new) for s in load.sessions
    ]
    assert {r.output_tokens for r in done.records} == {6}
    assert {r.cached_tokens for r in done.records} == {0}


async def test_a_shared_prefix_is_found_by_the_cache(tiny: Running) -> None:
    shape = Shape(parse_lengths("16", "input"), parse_lengths("2", "output"), shared=64)
    async with await Target.open(TargetOptions(tiny.url)) as target:
        options = RunOptions(requests=6, concurrency=1, warmup=1, salt="shared")
        s = summarize(await Runner(target, options).run(made_up(shape, 12, 0)))
    assert s.hit_rate == pytest.approx(64 / 80)


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_conversation_finds_its_own_past_in_the_cache(tiny: Running, api: str) -> None:
    shape = Shape(parse_lengths("40", "input"), parse_lengths("4", "output"), turns=parse_lengths("3", "turns"))
    async with await Target.open(TargetOptions(tiny.url, api=api)) as target:  # type: ignore[arg-type]
        done = await Runner(target, RunOptions(salt=f"turns{api}")).run(
            at_times(made_up(shape, 1, 0), "burst", 1, 0)
        )
    first, second, third = done.records
    assert first.prompt_tokens is not None
    assert first.prompt_tokens < second.prompt_tokens < third.prompt_tokens  # type: ignore[operator]
    assert (second.cached_tokens or 0) >= first.prompt_tokens // 16 * 16
    assert (third.cached_tokens or 0) > (second.cached_tokens or 0)


async def test_a_trace_keeps_its_prefix_structure(tiny: Running, shared_data: Path) -> None:
    cut = Cut(limit=20, length_scale=1 / 16, max_input=160, max_output=2)
    load = trace_load(shared_data / "traces" / "mooncake-conversation.jsonl", cut, speed=10.0)
    async with await Target.open(TargetOptions(tiny.url)) as target:
        done = await Runner(target, RunOptions(salt="trace")).run(load)
    assert all(r.ok for r in done.records)
    # These requests share their first block of 512 tokens, here 32: two blocks of the engine's.
    assert sum((r.cached_tokens or 0) >= 32 for r in done.records) >= 5


async def test_the_protocol_runs_to_its_end(tiny: Running) -> None:
    job = Job(Objectives(share=0.8), salt="protocol")
    async with await Target.open(TargetOptions(tiny.url)) as target:
        options = ProtocolOptions(SHAPE, requests=6, seconds=0.2, most_users=4, tolerance=1.0, points=3)
        protocol = Protocol(job, target, options, [], [])
        await protocol.run()
    titles = [s.title for s in protocol.sections]
    assert [t[0] for t in titles][:3] == ["1", "2", "3"]
    assert [t[0] for t in titles][-4:] == ["6", "7", "8", "D"]
    assert protocol.derived
    assert job.objectives.ttft is not None
    assert all(s.summary.requests > 0 for s in protocol.stages)
    reuse = {s.name: s.summary.hit_rate for s in protocol.stages if s.name.startswith("6")}
    assert reuse["6 · Shared prefixes: new prompts"] == 0
    assert (reuse["6 · Shared prefixes: three quarters shared"] or 0) > 0.3


def test_the_command_measures_and_writes_everything(tiny: Running, bench: Bench, tmp_path: Path) -> None:
    files = {name: tmp_path / f"r.{name}" for name in ("json", "csv", "html")}
    done = bench(
        *("run", tiny.url, "-c", "2", "-n", "6", "--input", "32", "--output", "4", "--ttft", "60000"),
        *(part for name, path in files.items() for part in (f"--{name}", str(path))),
        *("--api-key", "sesame"),
    )
    assert done.code == 0, done.err
    assert "6 ok" in done.out
    assert "goodput" in done.out
    read = json.loads(files["json"].read_text())
    assert read["results"]["attained"]["value"] == 1.0
    assert read["results"]["prompt_tokens"] == 6 * 32
    assert read["report"]["command"].endswith("--seed 0")
    assert files["html"].read_text().count("<svg") == 4
    assert len(files["csv"].read_text().splitlines()) >= 7
    for text in (done.out, done.err, *(f.read_text() for f in files.values())):
        assert "sesame" not in text


def test_sweep_and_compare_from_the_command_line(tiny: Running, bench: Bench) -> None:
    found = bench(
        *("sweep", tiny.url, "--ttft", "60000", "--start", "20", "--points", "2", "-n", "5", "--output", "2"),
        *("--json", "-"),
    )
    assert found.code == 0, found.err
    assert [p["rate"] for p in json.loads(found.out)["results"]["points"]] == [20.0, 40.0]
    pair = bench("compare", tiny.url, tiny.url, "--rounds", "2", "-n", "4", "-c", "2", "--output", "2")
    assert pair.code == 0, pair.err
    assert "B/A" in pair.out
    assert "2 rounds" in pair.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "http://127.0.0.1:1"), "is a server running there?"),
        (("run", "--input", "many"), "input: 'many' is not accepted"),
        (("run", "--rate", "1", "-c", "1"), "either --rate"),
        (("run", "--trace", "/nowhere.csv"), "a file that exists"),
        (("run", "--extra-body", "[1]"), "expected a JSON object"),
        (("sweep",), "needs an objective"),
        (("run", "--api", "smoke"), "expected one of completions, chat"),
    ],
)
def test_bad_options_are_one_line_and_no_traceback(bench: Bench, arguments: tuple[str, ...], says: str) -> None:
    done = bench(*arguments)
    assert done.code in (1, 2)
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_gives_the_partial_result(tiny: Running, number: signal.Signals, code: int) -> None:
    command = [
        sys.executable,
        "-m",
        "shoal.cli",
        "bench",
        "run",
        tiny.url,
        "-c",
        "2",
        "-n",
        "100000",
        "--output",
        "4",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    try:
        before = generated(tiny)
        eventually(lambda: generated(tiny) > before + 60, "requests are being answered", 60)
        process.send_signal(number)
        started = time.monotonic()
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - started < 60
    finally:
        process.kill()
        process.wait(20)
    assert process.returncode == code, err
    assert "PARTIAL" in out
    assert " ok" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_ends_a_bench_whose_server_is_silent(number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "shoal.cli", "bench", "run", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            silent.settimeout(60)
            connection, _ = silent.accept()
            assert connection.recv(4096).startswith(b"GET /v1/models")
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait(20)
        connection.close()
    assert process.returncode == code
    assert "interrupted" in err
    assert "Traceback" not in err


def generated(tiny: Running) -> int:
    engine = tiny.replica.engine
    assert engine is not None
    return engine.stats().generated_tokens
