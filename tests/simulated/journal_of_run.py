"""What happened in one run, in order: the same bytes for the same seed."""

import hashlib
import zlib
from collections.abc import Callable


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
