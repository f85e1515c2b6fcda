"""One rank: a process that holds a shard, executes step plans and decides nothing.

    python -m shoal.engine.ranks.rank FD        started by the executor, with one end of a socket pair
    join(LaunchEnv.of())                   started by a launcher, with RANK and its like in the environment

The main thread reads a command, executes it, answers. A second thread beats, and ends the process at once when the
executor is gone, whatever the main thread is in the middle of.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.engine.errors import EngineError
from shoal.engine.machine import usable_cores
from shoal.engine.messages import StepCommand
from shoal.engine.parallel.group import CollectiveTimeout
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.ranks.heartbeat import BeatBoard
from shoal.engine.ranks.link import (
    Allocate,
    Beat,
    Done,
    Execute,
    Failed,
    LinkClosed,
    Loaded,
    RankEnd,
    Ready,
    Report,
    Reported,
    Setup,
    Stop,
)
from shoal.engine.ranks.open import open_mesh
from shoal.engine.ranks.rendezvous import LaunchEnv, connect_rank
from shoal.policy.batching.plan import StepResult

if TYPE_CHECKING:
    from shoal.engine.kv.budget import KvBudget

_PR_SET_PDEATHSIG = 1
_ORPHANED = 3
"""Exit code of a rank whose executor is gone."""
FAILED = 4
"""Exit code of a rank that has said what failed."""


class RankWorker(Protocol):
    """What executes steps; `engine.worker.Worker` is one."""

    def execute(self, command: StepCommand) -> StepResult: ...

    @property
    def live_sequences(self) -> int: ...

    def close(self) -> None: ...


class PreparedRank(Protocol):
    """A rank that has loaded and has no KV memory yet; `engine.ranks.load.LoadedRank` is one."""

    @property
    def budget(self) -> KvBudget: ...

    def worker(self, num_blocks: int) -> RankWorker: ...


def load(setup: Setup, mesh: Mesh) -> PreparedRank:
    """This rank's share of the model."""
    import torch

    from shoal.engine.ranks.load import load_worker
    from shoal.engine.sampling.guided import GuidedCompiler
    from shoal.engine.sources import model_of
    from shoal.engine.text.tokenizer import load_tokenizer
    from shoal.specs import load_model_spec

    torch.set_num_threads(setup.threads or _own_threads())
    options = setup.options
    # On another host than the executor, perhaps, the model is found again.
    path = Path(setup.model_path) if setup.model_path else model_of(options).path
    spec = load_model_spec(path)
    guided: GuidedCompiler | None = None
    eos: tuple[int, ...] = ()
    if mesh.samples:
        tokenizer = load_tokenizer(path)
        eos = tuple(tokenizer.eos_token_ids)
        guided = GuidedCompiler(tokenizer.json, spec.vocab, eos)
        guided.prepare()
    return load_worker(options, mesh, path, spec, guided, eos)


def main(link: RankEnd) -> int:
    """Serve until told to stop; the exit code."""
    try:
        setup = link.receive()
    except LinkClosed:
        return _ORPHANED
    if not isinstance(setup, Setup):
        raise TypeError(f"the first message is {type(setup).__name__}; expected Setup")
    if setup.parent is not None:
        _die_with(setup.parent)
    board = None if setup.board is None else BeatBoard(setup.board, setup.layout.world)
    _Pulse(link, setup, board).start()
    try:
        _serve(link, setup, board)
    except LinkClosed:
        return _ORPHANED
    except BaseException as error:  # MemoryError and whatever a library raises: the executor must know
        missing = error.missing if isinstance(error, CollectiveTimeout) else None
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(LinkClosed):
            link.send(Failed(type(error).__name__, _message(error), text, missing))
        return FAILED
    return 0


def _serve(link: RankEnd, setup: Setup, board: BeatBoard | None) -> None:
    mesh = open_mesh(setup, None if board is None else board.watch_word(setup.rank))
    module, _, function = setup.worker.partition(":")
    prepared: PreparedRank = getattr(importlib.import_module(module), function)(setup, mesh)
    link.send(Loaded(prepared.budget.num_blocks, prepared.budget.max_model_len))
    allocate = link.receive()
    if isinstance(allocate, Stop):
        return
    if not isinstance(allocate, Allocate):
        raise TypeError(f"{type(allocate).__name__} came where Allocate was expected")
    worker = prepared.worker(allocate.num_blocks)
    link.send(Ready())
    while True:
        match link.receive():
            case Execute(ticket, command):
                start, waited = time.perf_counter(), mesh.waited
                result = worker.execute(command)
                seconds = time.perf_counter() - start
                answer = result if mesh.samples else None
                link.send(Done(ticket, seconds, mesh.waited - waited, answer, result.expert_loads))
            case Report():
                link.send(Reported(mesh.traffic.snapshot(), worker.live_sequences))
            case Stop():
                break
            case other:
                raise TypeError(f"{type(other).__name__} came between steps")
    worker.close()
    mesh.close()


class _Pulse(threading.Thread):
    """Beats, and ends the process when the executor's end of the link is closed."""

    def __init__(self, link: RankEnd, setup: Setup, board: BeatBoard | None) -> None:
        super().__init__(name="shoal-pulse", daemon=True)
        self._link = link
        self._setup = setup
        self._board = board

    def run(self) -> None:
        poller = select.poll()
        # Hang-ups only: data is the main thread's to read.
        poller.register(self._link.sock, getattr(select, "POLLRDHUP", 0))
        count = 0
        while not poller.poll(self._setup.beat_seconds * 1000):
            count += 1
            if self._board is not None:
                self._board.beat(self._setup.rank)
            else:
                with contextlib.suppress(LinkClosed):
                    self._link.send(Beat(count))
        os._exit(_ORPHANED)


def _own_threads() -> int:
    """For a rank that a launcher started: its share of this host's cores."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def join(launched: LaunchEnv) -> int:
    """Be the rank that the launcher made this process; returns its exit code when the replica has ended.

    Raises EngineError when rank 0 cannot be reached.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return main(RankEnd(connect_rank(launched)))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even while it is stopped. Linux; elsewhere the closed
    link has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(_ORPHANED)


def _message(error: BaseException) -> str:
    """For users: what happened, without a traceback."""
    if isinstance(error, EngineError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    # Ctrl-C is the executor's to handle; what is printed must not mix with a command's output.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    code = main(RankEnd(socket.socket(fileno=int(sys.argv[1]))))
    sys.stderr.flush()
    # Without the interpreter's clean-up: memory is the kernel's to free, and a peer's mapping doesn't need ours.
    os._exit(code)
