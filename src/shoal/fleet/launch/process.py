"""One replica's process: a session of its own, output into its log, ended together with everything it started."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.fleet.launch.log import ReplicaLog

_CHUNK = 64 * 1024
_REAP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start a replica."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of this process's own."""
    stdin: bytes = b""
    """Written and closed: what must not be seen in a list of processes."""
    sockets: tuple[socket.socket, ...] = ()
    """Listening sockets that it inherits; this process's copies are closed once it runs."""
    death_signal: int = signal.SIGKILL
    """What it gets when this process dies. SIGTERM for programs that have processes of their own to end."""


class ReplicaProcess:
    """Started once. `end` it, always: also a process that has exited may have left children in its group."""

    def __init__(self, command: Command, log: ReplicaLog) -> None:
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Raises OSError if no process can be started."""
        command = self._command
        try:
            # -P: a file in the working directory must not stand in for a module.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "shoal.fleet.launch.child",
                str(os.getpid()),
                str(int(command.death_signal)),
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=tuple(sock.fileno() for sock in command.sockets),
                start_new_session=True,
                env={**os.environ, **command.environment},
            )
        finally:
            # Open here, a port would go on taking connections that nobody answers once the replica is dead.
            for sock in command.sockets:
                sock.close()
        self._pump = asyncio.ensure_future(self._read())
        assert self._process.stdin is not None
        self._process.stdin.write(command.stdin)
        self._process.stdin.close()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(_CHUNK):
            self._log.write(data)

    async def wait(self) -> int:
        """Its exit code once it has ended, its output in the log."""
        assert self._process is not None
        code = await self._process.wait()
        if self._pump is not None:
            # A child that it left behind may hold the pipe open.
            await asyncio.wait({self._pump}, timeout=0.5)
        return code

    def signal(self, number: int) -> None:
        """To the process itself; nothing if it is gone."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, then SIGKILL to its whole group. Returns once it is reaped."""
        process = self._process
        if process is None:
            return
        try:
            if process.returncode is None and grace > 0:
                self.signal(signal.SIGTERM)
                # It may be stopped, and then would not see the signal.
                self.signal(signal.SIGCONT)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAP_SECONDS):
                    await process.wait()
            if self._pump is not None:
                await asyncio.wait({self._pump}, timeout=1.0)
                self._pump.cancel()
                await asyncio.gather(self._pump, return_exceptions=True)
            self._log.close()
