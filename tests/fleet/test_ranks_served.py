"""`shoal serve` over ranks: started by a launcher on several hosts, told of experts' options, interrupted."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from e2ekit import serve_process
from rank_kit import assert_none_marked, mark_children

from shoal import LLM, SamplingParams
from shoal.engine.errors import InvalidOption
from shoal.engine.options import EngineOptions
from shoal.fleet.config_checks import engine_options
from shoal.fleet.config_file import parse_config

COMMAND = [sys.executable, "-m", "shoal.cli", "serve"]
pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(600)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=100, check=False)


def host(monkeypatch: pytest.MonkeyPatch, rank: int, world: int, port: int) -> None:
    """From now on processes are started as a launcher on a host of its own would start this rank."""
    said = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    for name, value in said.items():
        monkeypatch.setenv(name, str(value))


def test_a_replica_on_two_hosts_serves_from_one_of_them(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    """The same command line on both; the other host's port is taken, which is none of rank 1's business."""
    prompt = "A shoal of fish"
    with LLM(str(tiny_folder), num_blocks=100, threads=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        alone = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].text
    arguments = [str(tiny_folder), "--served-name", "tiny", "--num-blocks", "100", "--threads", "1", "--tp", "2",
                 "--rendezvous", "env"]  # fmt: skip
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host(monkeypatch, 1, 2, port)
        other = subprocess.Popen([*COMMAND, *arguments, "--port", str(taken.getsockname()[1])])
        try:
            host(monkeypatch, 0, 2, port)
            with serve_process(*arguments) as server:
                body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
                answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False)
                assert answer.json()["choices"][0]["text"] == alone
                server.process.send_signal(signal.SIGINT)
                assert server.wait() == 0
            assert other.wait(20) == 0
        finally:
            if other.poll() is None:
                other.kill()
                other.wait(10)


@pytest.mark.slow
def test_torchrun_starts_a_replica(tiny_folder: Path) -> None:
    """Its agent holds the store, and every process has the same port to serve on."""
    port = free_port()
    arguments = [str(tiny_folder), "--num-blocks", "100", "--threads", "1", "--pp", "2", "--rendezvous", "env"]
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
         "-m", "shoal.cli", "serve", *arguments, "--served-name", "tiny", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:  # fmt: skip
        try:
            lines: list[str] = []
            reader = threading.Thread(target=lambda: lines.extend(launcher.stdout or ()), daemon=True)
            reader.start()
            until(lambda: any("Ctrl-C stops" in line for line in lines), launcher, 120)
            body = {"model": "tiny", "prompt": "a", "max_tokens": 4, "ignore_eos": True}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60, trust_env=False)
            assert answer.json()["usage"]["completion_tokens"] == 4
            launcher.send_signal(signal.SIGINT)
            launcher.wait(60)
        finally:
            for process in psutil.Process(launcher.pid).children(recursive=True) if launcher.poll() is None else []:
                process.kill()
            launcher.kill()
    reader.join(10)


def until(condition: "object", process: "subprocess.Popen[str]", seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--spare-experts", "1"], "spare_experts=1"),
        (["--tp", "2", "--rendezvous", "env"], "a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        (
            ["--tp", "9"],
            "nearest tp3 dp3 or tp3 cp3 or dp9 (tp=9 leaves a rank without a head: attention has 4 query heads)",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, arguments: list[str], says: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = run(str(tiny_folder), "--port", "0", *arguments)
    assert says in found.stderr
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"balance_steps": 4}, "balance_steps=4"),
        ({"ep": 3, "tp": 4}, "a divisor of dp·cp·tp = 4, the ranks that it regroups: 1, 2, 4"),
        ({"rendezvous": "carrier-pigeon"}, "rendezvous='carrier-pigeon'"),
        ({"rank_timeout": 0.0}, "rank_timeout=0.0"),
    ],
)
def test_the_rule_that_options_break_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(says)):
        EngineOptions(model="any", **options).validate()


def test_options_of_experts_reach_a_replica_from_flags_and_from_a_file() -> None:
    flags = ["--ep", "2", "--spare-experts", "1", "--balance-steps", "7"]
    found = subprocess.run(
        [*COMMAND, "any", "--check", *flags], capture_output=True, text=True, timeout=100, check=False
    )
    assert "ep2" in found.stdout
    assert "spare_experts 1" in found.stdout
    assert "balance_steps 7" in found.stdout
    pool = {"name": "a", "model": "any", "layout": {"ep": 2}, "options": {"spare_experts": 1, "balance_steps": 7}}
    options = engine_options(parse_config({"pools": [pool]}).pools[0])
    assert (options.ep, options.spare_experts, options.balance_steps) == (2, 1, 7)


def moments() -> list[object]:
    """Seconds after the start: one in every run, two dozen over the whole of a start-up in the slow one."""
    dice = random.Random(4)
    return [2.0, *(pytest.param(round(dice.uniform(0, 12), 2), marks=pytest.mark.slow) for _ in range(24))]


@pytest.mark.parametrize("after", moments())
def test_ctrl_c_at_any_moment_of_a_served_start_up_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, after: float
) -> None:
    marker = f"{os.getpid()}-{after}"
    mark_children(monkeypatch, marker)
    arguments = [str(tiny_folder), "--num-blocks", "100", "--threads", "1", "--tp", "2", "--port", "0"]
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            time.sleep(after)  # the moment of the interrupt is what is tested
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode in (0, 130, -signal.SIGINT)
    if process.returncode >= 0:  # else Python itself was not up yet
        assert "Traceback" not in said
    assert_none_marked(marker)
