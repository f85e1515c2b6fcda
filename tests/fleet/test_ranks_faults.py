"""Ranks that are killed, stopped, late or broken, with real processes: named, within the deadline, nothing left."""

import os
import signal
import subprocess
import sys
import time

import pytest
from rank_kit import assert_none_marked, command, entry, expose_workers, gone, mark_children, ranks
from rank_workers import SLOW_STAGE

from shoal.engine.errors import EngineDead
from shoal.engine.messages import StepCommand
from shoal.policy.batching.plan import StepPlan

TIMEOUT = 3.0
WORDS = {
    "kill": r"was killed by signal 9",
    "stop": r"is stopped: no heartbeat for \d\.\d s",
    "sleep": r"is late: other ranks have waited \d\.\d s for it",
    "raise": r"failed: RuntimeError: the coffee machine is empty",
    "memory": r"failed: out of memory: no room for 12 bytes",
    "exit": r"ended with exit code 7",
}
pytestmark = pytest.mark.usefixtures("no_leaks")


def slow(*values: object) -> list[object]:
    """The first half of the values in every run, the others in the slow one: each starts processes."""
    half = len(values) // 2
    return [*values[:half], *(pytest.param(value, marks=pytest.mark.slow) for value in values[half:])]


@pytest.mark.parametrize("kind", list(WORDS))
def test_a_rank_that_fails_is_named_in_time_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # Only one that is late has to be missed by others, in a collective.
    worker, victim = ("rank_workers:probe", 1) if kind == "sleep" else ("rank_hollow:hollow", 0)
    with ranks(monkeypatch, f"{kind} {victim} 2", worker, tp=2, rank_timeout=TIMEOUT) as executor:
        for step in range(2):
            executor.submit(command(step, entry(1, step))).result(30)
        start = time.monotonic()
        future = executor.submit(command(2, entry(1, 2)))
        with pytest.raises(EngineDead, match=rf"^rank {victim} \(tp {victim} of 2\) {WORDS[kind]}"):
            future.result(TIMEOUT + 2)
        assert time.monotonic() - start < TIMEOUT + 1
        assert gone(executor.pids)
        with pytest.raises(EngineDead, match=f"rank {victim}"):
            executor.submit(command(3, entry(1, 3))).result(1)


def test_a_rank_that_dies_idle_is_noticed_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(monkeypatch, worker="rank_hollow:hollow", tp=2, rank_timeout=TIMEOUT) as executor:
        executor.submit(command(0, entry(1, 2))).result(30)
        os.kill(executor.pids[0], signal.SIGKILL)
        assert gone(executor.pids)
        with pytest.raises(EngineDead, match=r"rank 0 \(tp 0 of 2\) was killed by signal 9"):
            executor.submit(command(1, entry(1, 2))).result(5)


def test_bug_20_the_writer_is_not_blocked_by_a_rank_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command larger than what a socket buffers, to a rank that is stopped."""
    with ranks(monkeypatch, worker="rank_hollow:hollow", tp=2, rank_timeout=TIMEOUT) as executor:
        executor.submit(command(0, entry(1, 2))).result(30)
        os.kill(executor.pids[0], signal.SIGSTOP)
        start = time.monotonic()
        future = executor.submit(command(1, entry(1, *range(70_000, 5_000_000))))
        with pytest.raises(EngineDead, match=r"rank 0 \(tp 0 of 2\) is stopped"):
            future.result(TIMEOUT + 2)
        assert time.monotonic() - start < TIMEOUT + 5
        assert gone(executor.pids)


def test_a_step_that_takes_too_long_names_the_rank_where_no_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(
        monkeypatch, "sleep 1 0", "rank_hollow:hollow", dp=2, rank_timeout=TIMEOUT, step_timeout=2.0
    ) as executor:
        plans = [command(0, entry(lane, 1)).plan for lane in range(2)]
        sequences = plans[0].sequences + plans[1].sequences
        future = executor.submit(StepCommand(StepPlan(0, 0, sequences, lanes=tuple(plans))))
        with pytest.raises(EngineDead, match=r"rank 1 \(dp 1 of 2\) is late: a step has taken more than 2 s"):
            future.result(10)


def test_a_stage_may_compute_for_longer_than_the_rank_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOW_STAGE, "2.5")
    with ranks(monkeypatch, pp=2, rank_timeout=1.5) as executor:
        executor.submit(command(0, entry(1, 2))).result(30)


_PARENT = """
import sys, time
from pathlib import Path
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.options import EngineOptions
print("starting", flush=True)
executor = ProcessExecutor.start(
    EngineOptions(model="none", tp=2, threads=1), Path("none"), cores=1, worker="rank_hollow:hollow"
)
print(*executor.pids, flush=True)
time.sleep(3600)
"""


def parent() -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)


def test_ranks_end_when_their_executor_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is stopped and cannot notice by itself."""
    expose_workers(monkeypatch, "none 0 0")
    with parent() as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = tuple(int(pid) for pid in process.stdout.readline().split())
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGSTOP)
        process.kill()
        process.wait(10)
        assert gone(pids), "ranks outlived their parent"


@pytest.mark.parametrize("after", slow(0.3, 2.0, 0.0, 0.1, 1.0))
def test_ctrl_c_during_start_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    marker = f"{os.getpid()}-{after}"
    mark_children(monkeypatch, marker)
    expose_workers(monkeypatch, "none 0 0")
    with parent() as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)  # the moment of the interrupt is what is tested
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
        assert_none_marked(marker)
