"""Ranks that a launcher starts: every process runs the same program, rank 0's serves."""

import os
import socket
import subprocess
import sys

import pytest
from rank_kit import expose_workers

from shoal.engine.errors import InvalidOption
from shoal.engine.ranks.rendezvous import LaunchEnv

PROGRAM = """
import sys
from pathlib import Path
from shoal.engine.errors import EngineDead
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.messages import StepCommand
from shoal.engine.options import EngineOptions
from shoal.engine.ranks.rank import join
from shoal.engine.ranks.rendezvous import LaunchEnv
from rank_kit import command, entry
from rank_workers import expected_checksum

launched = LaunchEnv.of()
if launched.rank:
    sys.exit(join(launched))
options = EngineOptions(model="none", tp=2, threads=1, rendezvous="env", rank_timeout=3.0)
executor = ProcessExecutor.start(options, Path("none"), cores=1, worker="rank_workers:probe")
try:
    for step in range(3):
        token = executor.submit(command(step, entry(1, step))).result(30).sequences[0].tokens[0]
        assert token == expected_checksum((1, 1, 2), 0, (step,), step)
    print("right", flush=True)
    if len(sys.argv) > 1:
        sys.stdin.readline()
        try:
            for step in range(1000):
                executor.submit(command(step, entry(1, step))).result(30)
        except EngineDead as error:
            print(error, flush=True)
finally:
    executor.close()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launch(port: int, rank: int, *arguments: str) -> "subprocess.Popen[str]":
    environ = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_launched_ranks_find_one_another_and_end_together(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    expose_workers(monkeypatch, "none 0 0")
    port = free_port()
    with launch(port, 0) as zero, launch(port, 1) as one:
        try:
            output, _ = zero.communicate(timeout=90)
            assert (output, zero.returncode) == ("right\n", 0)
            assert one.wait(10) == 0
        finally:
            zero.kill()
            one.kill()


def test_a_launched_rank_that_dies_is_named(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    expose_workers(monkeypatch, "none 0 0")
    port = free_port()
    with launch(port, 0, "go on") as zero, launch(port, 1) as one:
        try:
            assert zero.stdout is not None
            assert zero.stdout.readline() == "right\n"
            one.kill()
            output, _ = zero.communicate("\n", timeout=30)
            assert output == "rank 1 (tp 1 of 2) closed its link: its process or its host is gone\n"
            assert zero.returncode == 0
        finally:
            zero.kill()
            one.kill()


def test_what_the_launcher_did_not_say_is_named() -> None:
    with pytest.raises(InvalidOption, match="sets WORLD_SIZE, MASTER_PORT"):
        LaunchEnv.of({"RANK": "0", "MASTER_ADDR": "here"})
    said = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    with pytest.raises(InvalidOption, match=r"RANK=2 .* 0 to WORLD_SIZE - 1 = 1"):
        LaunchEnv.of(said)
    with pytest.raises(InvalidOption, match="MASTER_PORT='x'"):
        LaunchEnv.of({**said, "MASTER_PORT": "x"})
