"""Rank processes, started here or connected from elsewhere: listened to, watched and ended by one thread.

A failure, of whatever sort, takes one way: it is worded with the rank's name, every rank is killed, it is told, and
they are reaped: on a machine without a free core that takes seconds, for which no request should wait. Nothing is
left behind even if this process is killed: ranks end with their parent, and their shared memory has no name.
"""

import contextlib
import logging
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engine import QUIET_OPENMP
from shoal.engine.ranks.heartbeat import BeatBoard, Lateness
from shoal.engine.ranks.link import Beat, ExecutorEnd, Failed, FromRank, LinkClosed, Setup, Stop, frame

log = logging.getLogger("shoal.engine.ranks")

LOADING_SILENCE = 120.0
"""Seconds without a beat that are allowed while a rank imports and reads weights: big libraries hold the
interpreter for long on a slow disk."""
_SHARE = 0.8
"""Of rank_timeout after which a rank counts as failed: the rest is for noticing, killing and telling."""
_STOP_SECONDS = 2.0
"""How long ranks get to end in good order."""
_REAP_SECONDS = 5.0


@dataclass(slots=True)
class _Rank:
    name: str
    process: subprocess.Popen[bytes] | None
    """None: started by others; it ends when its link is closed."""
    link: ExecutorEnd
    beats: int = 0
    """Heartbeats that came over the link."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the replica cannot go on."""

    reason: str
    kind: str | None = None
    """Name of the exception's class, if a rank said so itself."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """How to start one rank."""

    setup: Setup
    name: str
    """For messages: `rank 1 (tp 1 of 2)`."""
    fds: tuple[int, ...] = ()
    """Descriptors the setup speaks of."""
    sock: socket.socket | None = None
    """The link of a rank that others have started."""


class RankProcesses:
    """All ranks of a replica. The callbacks are called from the watching thread, `on_failure` at most once.

    `overdue(now)` names the rank that holds up a step for longer than is allowed, if there is one.
    """

    def __init__(
        self,
        launches: Sequence[RankSpec],
        board: BeatBoard,
        on_message: Callable[[int, FromRank], None],
        on_failure: Callable[[Failure], None],
        overdue: Callable[[float], int | None],
    ) -> None:
        self._launches = launches
        self._board = board
        self._on_message = on_message
        self._on_failure = on_failure
        self._overdue = overdue
        options = launches[0].setup.options
        self._timeout = options.rank_timeout
        self._step_timeout = options.step_timeout
        self._interval = launches[0].setup.beat_seconds
        self._ranks: list[_Rank] = []
        self._spawned: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._failure: Failure | None = None
        self._observed_state = False
        self.serving = False
        """Ranks have loaded: from now on silence and lateness are failures."""
        self._wake, self._awake = socket.socketpair()
        # Daemon, because a rank must end with its parent, not the parent wait for it. The kernel counts the thread
        # that started a process as its parent, so the one that lives longest starts them.
        self._thread = threading.Thread(target=self._run, name="shoal-ranks", daemon=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the ranks that were started here."""
        return tuple(rank.process.pid for rank in self._ranks if rank.process is not None)

    def start(self) -> None:
        """Returns once every process runs; loading goes on. Raises OSError if they cannot be started."""
        self._thread.start()
        error = self._spawned.get()
        if error is not None:
            self.close()
            raise error

    def send(self, rank: int, data: bytes) -> None:
        """Raises LinkClosed when the rank is gone; the failure is told as well."""
        link = self._ranks[rank]
        with link.lock:
            link.link.send(data)

    def close(self) -> None:
        """End all ranks: in good order if they are well, at once if not. Idempotent, from any thread."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS + 2 * _REAP_SECONDS)

    def _run(self) -> None:
        try:
            try:
                self._spawn()
            except BaseException as error:
                self._kill()
                self._spawned.put(error)
                return
            self._spawned.put(None)
            try:
                self._watch()
            except Exception as error:
                log.exception("watching the ranks failed")
                self._fail(f"watching the ranks failed: {type(error).__name__}")
            # Ranks that are still loading do not read a stop message.
            if self._failure is None and self.serving:
                self._request_stop()
        finally:
            self._kill()
            self._wake.close()
            self._awake.close()
            self._board.close()

    def _spawn(self) -> None:
        for launch in self._launches:
            if launch.sock is not None:
                process, link = None, ExecutorEnd(launch.sock, self._step_timeout)
            else:
                process, link = _start(launch, self._step_timeout)
            self._ranks.append(_Rank(launch.name, process, link))
            link.send(frame(launch.setup))

    def _watch(self) -> None:
        now = time.monotonic()
        lateness = Lateness(len(self._ranks), now)
        with selectors.DefaultSelector() as selector:
            selector.register(self._awake, selectors.EVENT_READ, -1)
            for index, rank in enumerate(self._ranks):
                selector.register(rank.link.sock, selectors.EVENT_READ, index)
            while not self._stop.is_set() and self._failure is None:
                before = now
                for key, _ in selector.select(self._interval):
                    if key.data >= 0 and self._failure is None:
                        self._read(key.data)
                now = time.monotonic()
                if now - before > max(4 * self._interval, 0.5):
                    # This process was itself away (stopped, or the machine asleep), and so perhaps were the ranks.
                    lateness.forgive(now)
                if self._failure is None:
                    self._check(lateness, now)

    def _read(self, index: int) -> None:
        rank = self._ranks[index]
        try:
            messages = rank.link.messages()
        except (LinkClosed, ValueError):
            self._fail(f"{rank.name} {self._end_of(rank)}")
            return
        for message in messages:
            if isinstance(message, Beat):
                rank.beats = message.count
                continue
            if isinstance(message, Failed):
                log.debug("%s failed:\n%s", rank.name, message.traceback)
                self._fail(self._format_failure(rank, message), message.kind)
                return
            self._on_message(index, message)

    def _check(self, lateness: Lateness, now: float) -> None:
        for index, rank in enumerate(self._ranks):
            beats = rank.beats if rank.process is None else self._board.beats(index)
            lateness.observe(index, beats, self._board.wait(index), now)
        if self.serving != self._observed_state:
            # What a rank did while it loaded says nothing about how it serves.
            self._observed_state = self.serving
            lateness.forgive(now)
        if not self.serving:
            if (quiet := lateness.silent(LOADING_SILENCE, now)) is not None:
                self._fail(f"{self._ranks[quiet[0]].name} gave no sign of life for {quiet[1]:.1f} s while loading")
            return
        limit = _SHARE * self._timeout
        if (quiet := lateness.silent(limit, now)) is not None:
            silent, age = self._ranks[quiet[0]], quiet[1]
            stopped = silent.process is not None and _is_stopped(silent.process.pid)
            state = "is stopped" if stopped else "does not respond"
            self._fail(f"{silent.name} {state}: no heartbeat for {age:.1f} s")
        elif (late := lateness.late(limit, now)) is not None:
            self._fail(f"{self._ranks[late[0]].name} is late: other ranks have waited {late[1]:.1f} s for it")
        elif (holder := self._overdue(now)) is not None:
            self._fail(f"{self._ranks[holder].name} is late: a step has taken more than {self._step_timeout:g} s")

    def _end_of(self, rank: _Rank) -> str:
        """How a rank's process ended, whose link is closed."""
        if rank.process is None:
            return "closed its link: its process or its host is gone"
        try:
            code = rank.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its link"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _format_failure(self, rank: _Rank, failed: Failed) -> str:
        if failed.missing is None:
            return f"{rank.name} failed: {failed.message}"
        return f"{self._ranks[failed.missing].name} did not come: {rank.name} says {failed.message}"

    def _fail(self, reason: str, kind: str | None = None) -> None:
        self._failure = Failure(reason, kind)
        self._send_sigkill()
        self._on_failure(self._failure)
        self._kill()

    def _request_stop(self) -> None:
        """Ask all to stop and give them a moment."""
        stop = frame(Stop())
        for index in range(len(self._ranks)):
            with contextlib.suppress(LinkClosed):
                self._ranks[index].link.sock.settimeout(0.1)
                self.send(index, stop)
        deadline = time.monotonic() + _STOP_SECONDS
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if rank.process is not None:
                    rank.process.wait(max(0.0, deadline - time.monotonic()))

    def _send_sigkill(self) -> None:
        """Kill what still runs. A stopped process dies of SIGKILL too."""
        for rank in self._ranks:
            if rank.process is not None and rank.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    rank.process.send_signal(signal.SIGKILL)

    def _kill(self) -> None:
        """End what still runs, reap it and close its link."""
        self._send_sigkill()
        for rank in self._ranks:
            try:
                if rank.process is not None:
                    rank.process.wait(_REAP_SECONDS)
            except subprocess.TimeoutExpired:
                log.error("%s does not die", rank.name)
            rank.link.close()
        for launch in self._launches:
            if launch.sock is not None:
                launch.sock.close()


def _start(launch: RankSpec, send_timeout: float) -> tuple[subprocess.Popen[bytes], ExecutorEnd]:
    ours, theirs = socket.socketpair()
    link = ExecutorEnd(ours, send_timeout)
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shoal.engine.ranks.rank", str(theirs.fileno())],
                pass_fds=(theirs.fileno(), *launch.fds),
                stdin=subprocess.DEVNULL,
                # Away from the terminal's process group: Ctrl-C is the parent's to handle.
                start_new_session=True,
                env=_environment(launch.setup.threads),
            )
        except BaseException:
            link.close()
            raise
    return process, link


def _environment(threads: int) -> dict[str, str]:
    """Read by libraries when they are loaded, so it has to be set before the rank's first import."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **QUIET_OPENMP,
        "TOKENIZERS_PARALLELISM": "false",
    }


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process (SIGSTOP and the like)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")
