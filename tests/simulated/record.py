"""What happened in one run, in order: the same bytes for the same seed."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


class Journal:
    """Lines of virtual time, who, what."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.entries: list[tuple[float, str, str]] = []

    def note(self, who: str, what: str) -> None:
        self.entries.append((self._clock(), who, what))

    def bytes(self, wire: str, data: bytes) -> None:
        """Data that has arrived, by its length and checksum."""
        self.entries.append((self._clock(), wire, f"{len(data)} {zlib.crc32(data):08x}"))

    def lines(self, *, wires: bool = True) -> list[str]:
        """`wires` False: without what connections carried."""
        return [f"{at:.6f} {who}: {what}" for at, who, what in self.entries if wires or not who[0].isdigit()]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


@dataclass
class Run:
    """What came of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    recovery_seconds: float = 0.0
    seconds: float = 0.0
    """Of virtual time."""
    callbacks: int = 0
    retried: int = 0
    """Legs beyond the first of a request."""
    continued: int = 0
    """Those of them that went on with a stream."""
    restarts: int = 0
    """Processes started in place of others."""
    journal: Journal | None = None

    @property
    def digest(self) -> str:
        assert self.journal is not None
        return self.journal.digest
