"""What the groups of one rank sent: messages and bytes by axis and operation.

`plan/collectives.py` predicts the same figures from the model's shape; a message is one collective (or send) that
the rank took part in, its bytes are those of the tensor handed in, before any algorithm's factor.
"""

from dataclasses import dataclass

import msgspec


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start (or since a snapshot) of one operation on one axis."""

    axis: str
    operation: str
    """`all_reduce`, `all_gather`, `all_to_all`, `send` or `barrier`."""
    messages: int
    bytes: int
    """Bytes of the tensors handed in."""
    remote_bytes: int
    """Of these, bytes meant for other ranks: less than `bytes` only for `all_to_all`."""


@dataclass(slots=True)
class _Count:
    messages: int = 0
    bytes: int = 0
    remote: int = 0


class TrafficCounters:
    """Counters of one rank. Not thread-safe: collectives run in the rank's one compute thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Count] = {}

    def add(self, axis: str, operation: str, size: int, remote: int | None = None, messages: int = 1) -> None:
        """Count a message of `size` bytes, or several that have as many together."""
        count = self._counts.get((axis, operation))
        if count is None:
            count = self._counts[axis, operation] = _Count()
        count.messages += messages
        count.bytes += size
        count.remote += size if remote is None else remote

    def snapshot(self) -> tuple[Volume, ...]:
        """All counts so far, sorted by axis and operation."""
        return tuple(
            Volume(axis=axis, operation=operation, messages=c.messages, bytes=c.bytes, remote_bytes=c.remote)
            for (axis, operation), c in sorted(self._counts.items())
        )

    def reset(self) -> None:
        self._counts.clear()
