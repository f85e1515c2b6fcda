"""Start and ask the processes of `seat.py`, on this host or on `hosts`."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire.hosts import Hosts

PROGRAM = Path(__file__).with_name("seat.py")
START_SECONDS = 900.0
ANSWER_SECONDS = 900.0


class SeatFailed(Exception):
    """A process that ended, or did not answer in time; the message has its last words."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank's time in a run; seconds."""

    name: str
    steps: int
    seconds: float
    waited: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    seconds: float
    tokens: int
    rate: float | None
    """Tokens a second while decoding."""
    steps: int
    digest: str
    """Of all token ids."""
    ranks: tuple[RankTime, ...]


class Seat:
    """A process that answers lines with lines."""

    def __init__(self, name: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def here(cls, name: str, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> "Seat":
        """On this host."""
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return cls(name, process, log)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def answer(self, seconds: float) -> Any:
        """The next line. Raises SeatFailed."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise SeatFailed(f"{self.name}: no answer within {seconds:g} s; see {self._log}") from None
        if not line:
            words = [w for w in self._log.read_text(errors="replace").splitlines() if w.strip()]
            raise SeatFailed(f"{self.name}: ended: {(words or ['it said nothing'])[-1]} (see {self._log})")
        return json.loads(line)

    def ready(self) -> None:
        self.answer(START_SECONDS)

    def ask(self, question: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> Run:
        self.ask({"prompts": prompts, "new": new})
        return self.run()

    def run(self) -> Run:
        """The answer to a question already asked."""
        said = self.answer(ANSWER_SECONDS)
        return Run(**{**said, "ranks": tuple(RankTime(**rank) for rank in said["ranks"])})

    def close(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def command(model: str, options: Mapping[str, object]) -> list[str]:
    return [sys.executable, str(PROGRAM), model, json.dumps(dict(options))]


def on_hosts(
    hosts: Hosts, name: str, model: str, options: Mapping[str, object], places: Sequence[int], port: int, log: Path
) -> Seat:
    """A layout whose rank r is on host `places[r]`, its ranks started by environment rendezvous."""
    world = len(places)
    line = command(model, {**options, "rendezvous": "env", "collectives": "gloo"})
    seat: Seat | None = None
    for rank, place in enumerate(places):
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            # Rank 0's process starts that rank alone; the others are started here.
            "LOCAL_WORLD_SIZE": str(max(1, sum(p == place for p in places))),
            "MASTER_ADDR": hosts.addresses[places[0]],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": hosts.interface,
            "OMP_NUM_THREADS": "1",
        }
        process = hosts.start(place, line, environ, log)
        if rank == 0:
            seat = Seat(name, process, log)
    assert seat is not None
    return seat
