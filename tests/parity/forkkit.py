"""Ranks forked from the tests' own process: what they do is what `python -m shoal.engine.ranks.rank` does,
without the seconds that each takes to import PyTorch. For tests that start hundreds.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import pytest

from shoal.engine.ranks import processes as rank_processes
from shoal.engine.ranks.link import ExecutorEnd, RankEnd
from shoal.engine.ranks.processes import RankSpec
from shoal.engine.ranks.rank import main


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on executors fork their ranks. For ranks of one thread: OpenMP's threads don't survive a fork."""
    monkeypatch.setattr(rank_processes, "_start", _start)


@dataclass
class Forked:
    """As much of `subprocess.Popen` as is used of a rank."""

    pid: int
    returncode: int | None = field(default=None)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _start(launch: RankSpec, send_timeout: float) -> "tuple[subprocess.Popen[bytes], ExecutorEnd]":
    ours, theirs = socket.socketpair()
    link = ExecutorEnd(ours, send_timeout)
    pid = os.fork()
    if pid == 0:
        _be_a_rank(theirs, launch.fds)
    theirs.close()
    return cast("subprocess.Popen[bytes]", Forked(pid)), link


def _be_a_rank(sock: socket.socket, fds: tuple[int, ...]) -> None:
    """Never returns. Other ranks' links must not stay open here, or nobody would see them close."""
    code = 1
    with contextlib.suppress(BaseException):
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(2, 1)
        kept = {0, 1, 2, sock.fileno(), *fds}
        for fd in range(3, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else _highest_fd() + 1):
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        code = main(RankEnd(sock))
    os._exit(code)


def _highest_fd() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))
