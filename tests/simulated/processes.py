"""Simulated processes behind `asyncio.create_subprocess_exec`: a pid, pipes that nothing is read from, an exit."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Protocol

FIRST_PID = 2**23
"""Above what Linux gives out, so that a signal that went past the simulation would reach nobody."""


class Program(Protocol):
    """What a process runs."""

    def begin(self) -> None: ...
    def end(self) -> None:
        """Its process has ended: everything it has is gone."""

    def stop(self, stopped: bool) -> None:
        """SIGSTOP and SIGCONT."""

    def terminate(self) -> None:
        """SIGTERM."""


class _Pipe(asyncio.Transport):
    """Takes what is written, and gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    def write(self, data: Any) -> None: ...
    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    abort = close

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...


class SimulatedProcess(asyncio.SubprocessTransport):
    """One process, and asyncio's transport for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, program: Program, protocol: Any) -> None:
        super().__init__()
        self._loop, self._pid, self.program, self._protocol = loop, pid, program, protocol
        self._pipes = {fd: _Pipe() for fd in (0, 1, 2)}
        self._code: int | None = None
        self._waiters: list[asyncio.Future[int]] = []

    def say(self, text: bytes) -> None:
        """Write to its standard output."""
        if self._code is None:
            self._protocol.pipe_data_received(1, text)

    def exit(self, code: int) -> None:
        """It ends by itself, or of a signal (negative)."""
        if self._code is not None:
            return
        self._code = code
        self.program.end()
        self._loop.call_soon(self._reaped)

    def _reaped(self) -> None:
        assert self._code is not None
        self._protocol.process_exited()
        for fd in (0, 1, 2):
            self._protocol.pipe_connection_lost(fd, None)
        self._protocol.connection_lost(None)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(self._code)

    async def _wait(self) -> int:
        if self._code is not None:
            return self._code
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return await waiter

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._code

    def get_pipe_transport(self, fd: int) -> _Pipe:
        return self._pipes[fd]

    def send_signal(self, number: int) -> None:
        if self._code is not None:
            raise ProcessLookupError
        if number == signal.SIGKILL:
            self.exit(-number)
        elif number in (signal.SIGSTOP, signal.SIGCONT):
            self.program.stop(number == signal.SIGSTOP)
        elif number == signal.SIGTERM:
            self.program.terminate()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return self._code is not None


class ProcessTable:
    """Every process of one run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, program: Callable[[tuple[str, ...]], Program]) -> None:
        """`program` makes what a command line runs; OSError: it can't be started."""
        self._loop, self._program = loop, program
        self._next_pid = FIRST_PID
        self.running: dict[int, SimulatedProcess] = {}
        self.started = 0

    async def start(self, factory: Callable[[], Any], argv: tuple[str, ...]) -> tuple[SimulatedProcess, Any]:
        await asyncio.sleep(0.003)
        self._next_pid += 1
        # Raises OSError where none can be started.
        program = self._program(argv)
        protocol = factory()
        process = SimulatedProcess(self._loop, self._next_pid, program, protocol)
        self.running = {pid: p for pid, p in self.running.items() if p.get_returncode() is None}
        self.running[self._next_pid] = process
        self.started += 1
        protocol.connection_made(process)
        program.begin()
        return process, protocol

    def of(self, pid: int | None) -> SimulatedProcess | None:
        return self.running.get(pid) if pid is not None else None

    def killpg(self, pid: int, number: int) -> None:
        """Like `os.killpg`."""
        process = self.running.get(pid)
        if process is None or process.get_returncode() is not None:
            raise ProcessLookupError
        process.send_signal(number)
