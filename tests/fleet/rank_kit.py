"""Starting rank processes in tests, and proving that nothing of them is left."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.engine.messages import StepCommand
from shoal.engine.options import EngineOptions
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.policy.batching.plan import ScheduledSequence, StepPlan

HERE = Path(__file__).parent


@contextmanager
def ranks(
    monkeypatch: pytest.MonkeyPatch, fault: str = "none 0 0", worker: str = "rank_workers:probe", **options: Any
) -> Iterator[ProcessExecutor]:
    """Ranks that run the probe, or another worker."""
    expose_workers(monkeypatch, fault)
    options = {"rank_timeout": 5.0, "threads": 1, **options}
    executor = ProcessExecutor.start(EngineOptions(model="none", **options), Path("none"), cores=1, worker=worker)
    try:
        yield executor
    finally:
        executor.close()


def expose_workers(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let rank processes import this folder and know what to suffer."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SHOAL_TEST_FAULT", fault)


def entry(sequence_id: int, *tokens: int) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, 0, tokens, True, (1,), True)


def command(step: int, *sequences: ScheduledSequence) -> StepCommand:
    return StepCommand(StepPlan(step, 0, sequences))


def gone(pids: tuple[int, ...], deadline: float = 5.0) -> bool:
    """Whether all these processes end within the deadline (a zombie has not been reaped and is not gone)."""
    end = time.monotonic() + deadline
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def mark_children(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Mark all processes that are started from now on: finds ranks whose ids their parent had no time to tell."""
    monkeypatch.setenv("SHOAL_TEST_MARK", value)


def assert_none_marked(value: str) -> None:
    """Other processes with this mark are gone within five seconds."""
    deadline = time.monotonic() + 5
    while left := _marked(value):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def _marked(value: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if process.pid != os.getpid() and environment.get("SHOAL_TEST_MARK") == value:
            found.append(process.pid)
    return found
