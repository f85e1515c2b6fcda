"""How much structure a JSON body may have: its values become Python objects, which takes the GIL all the while.

16 MiB of `[],[],…` are five million lists: decoding them stops every stream of the process for seconds. Text is no
such burden, so only what lies outside strings is counted. NumPy counts without the GIL. What each limit allows
takes some 50 ms to decode (msgspec 0.20, AMD Zen 3).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.http.errors import ApiError

UNCHECKED_BYTES = 256 * 1024
"""Bodies up to this are decoded uncounted: whatever they hold takes some milliseconds."""
MAX_CONTAINERS = 50_000
"""Objects and arrays."""
MAX_VALUES = 500_000
"""Elements and members: token ids, most of all."""
MAX_ESCAPES = 1_200_000
r"""Characters written as `\n` or `\u00e9`, in strings."""
_CHUNK = 2**20


def check_structure(body: bytes | bytearray) -> None:
    """Raise `ApiError` 400 where a large body has more values than are decoded. Best called off the event loop."""
    if len(body) <= UNCHECKED_BYTES:
        return
    data = np.frombuffer(body, np.uint8)
    containers = values = slashes = 0
    # Counted everywhere first: that takes a tenth of the time, and nearly every text has fewer than the limits.
    for piece in pieces(data):
        containers += count(piece, "[") + count(piece, "{")
        values += count(piece, ",")
        slashes += count(piece, "\\")
    if containers > MAX_CONTAINERS or values > MAX_VALUES or slashes > MAX_ESCAPES:
        _check_outside_strings(data)


def pieces(data: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Bytes in pieces, which with what is computed of them fit into a processor's cache."""
    for start in range(0, data.size, _CHUNK):
        yield data[start : start + _CHUNK]


def count(piece: NDArray[np.uint8], character: str) -> int:
    """Of one ASCII character, without the GIL."""
    return int(np.count_nonzero(piece == ord(character)))


def _check_outside_strings(data: NDArray[np.uint8]) -> None:
    containers = values = escapes = 0
    counter = _Outside()
    for piece in pieces(data):
        outside = counter.outside_strings(piece)
        containers += int(np.count_nonzero(outside & ((piece == ord("[")) | (piece == ord("{")))))
        values += int(np.count_nonzero(outside & (piece == ord(","))))
        escapes += counter.escapes
        if containers > MAX_CONTAINERS or values > MAX_VALUES or escapes > MAX_ESCAPES:
            raise ApiError(
                400,
                f"the body has more JSON values than this server decodes: at most {MAX_CONTAINERS} objects and "
                f"arrays, {MAX_VALUES} elements, {MAX_ESCAPES} escaped characters",
                code="invalid_json",
            )


class _Outside:
    """Follows JSON strings over consecutive pieces of a body."""

    def __init__(self) -> None:
        self._inside = np.uint8(0)
        self._escaped = False
        """The next piece begins with an escaped character."""
        self.escapes = 0
        """Begun in the last piece."""

    def outside_strings(self, piece: NDArray[np.uint8]) -> NDArray[np.bool_]:
        quotes = piece == ord('"')
        self._unescape(piece, quotes)
        inside: NDArray[Any] = np.bitwise_xor.accumulate(quotes.view(np.uint8)) ^ self._inside
        self._inside = inside[-1]
        outside: NDArray[np.bool_] = inside == 0
        return outside

    def _unescape(self, piece: NDArray[np.uint8], quotes: NDArray[np.bool_]) -> None:
        """Take escaped quotes out of `quotes`: those after an odd number of backslashes."""
        first = self.escapes = 0
        if self._escaped:
            quotes[0], first, self._escaped = False, 1, False
        slashes = np.flatnonzero(piece[first:] == ord("\\")) + first
        if not slashes.size:
            return
        breaks = np.flatnonzero(np.diff(slashes) != 1)
        starts = slashes[np.concatenate(([0], breaks + 1))]
        ends = slashes[np.concatenate((breaks, [-1]))] + 1
        self.escapes = int(((ends - starts + 1) // 2).sum())
        escaped = ends[(ends - starts) % 2 == 1]
        if escaped.size and escaped[-1] == piece.size:
            self._escaped, escaped = True, escaped[:-1]
        quotes[escaped] = False
