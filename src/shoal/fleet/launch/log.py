"""What a replica prints: in a file of bounded size, its last lines at hand, no trouble when the disk is full."""

import contextlib
import logging
from collections import deque
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("shoal.fleet")

_LINE_LIMIT = 2000


class ReplicaLog:
    """Appends to `path`; at `max_bytes` the file becomes `path.1` and a new one begins. Never raises.

    A disk that is full, or a directory that is gone, costs log lines and nothing else: they are counted, and the
    file is tried again with the next output.
    """

    def __init__(self, path: Path, max_bytes: int = 8 * 2**20, keep: int = 2, tail_lines: int = 40) -> None:
        self.path = path
        self.dropped = 0
        """Bytes that could not be written."""
        self._max_bytes = max_bytes
        self._keep = keep
        self._tail: deque[bytes] = deque(maxlen=tail_lines)
        self._partial = b""
        self._file: BinaryIO | None = None
        self._size = 0
        self._failing = False

    def write(self, data: bytes) -> None:
        """Take in output as it came, whole lines or not."""
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()[-_LINE_LIMIT:]
        self._tail.extend(line[:_LINE_LIMIT] for line in lines)
        try:
            self._append(data)
            self._failing = False
        except OSError as error:
            self.dropped += len(data)
            self._shut()
            if not self._failing:
                log.warning("log %s can't be written: %s; the replica goes on without", self.path, error.strerror)
            self._failing = True

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what has been printed is there to be read, whatever happens next.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._size = self._file.tell()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        view = memoryview(data)
        while view:
            written = self._file.write(view) or 0
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        self._shut()
        for number in range(self._keep, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        self._size = 0

    def tail(self, lines: int = 12) -> str:
        """The last lines, for a message about a crash."""
        kept = [*self._tail, self._partial] if self._partial else list(self._tail)
        return "\n".join(line.decode("utf-8", "replace").rstrip() for line in kept[-lines:])

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def close(self) -> None:
        self._shut()
