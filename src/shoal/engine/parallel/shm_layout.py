"""How large a group's shared memory is, and memory that has no name and so cannot be left behind.

csrc/collectives.cpp says where things lie in it; a test compares the sizes.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass

PAGE = 4096
LINE = 128
"""Bytes between stamps: two cache lines, since the adjacent-line prefetcher couples pairs."""
MAX_RANKS = 64
SLOT_BYTES = 128 * 1024
"""Bytes of a piece: several fit a core's L2 cache, so a piece is still warm when the others read it."""
RING_DEPTH = 4
"""Pieces that a sender may be ahead of its receiver."""


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The segment of a group of `ranks`. Pages that are never used are never backed by memory."""

    ranks: int
    slot_bytes: int = SLOT_BYTES
    depth: int = RING_DEPTH

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"a shared-memory group has 2 to {MAX_RANKS} ranks, not {self.ranks}")
        if self.slot_bytes < 8 * self.ranks or self.slot_bytes % 64:
            raise ValueError(
                f"slot_bytes is {self.slot_bytes}; expected a multiple of 64, at least {8 * self.ranks}"
            )
        if self.depth < 1:
            raise ValueError(f"depth is {self.depth}; expected at least 1")

    @property
    def size(self) -> int:
        lines = self.ranks + 2 * self.ranks * self.ranks
        pieces = 2 * self.ranks + self.ranks * self.ranks * self.depth
        return PAGE + -(-lines * LINE // PAGE) * PAGE + pieces * self.slot_bytes


def anonymous_segment(label: str, size: int) -> int:
    """A file descriptor of `size` zero bytes of memory that no name leads to: it is gone with its last holder,
    whatever becomes of the processes. Not inherited unless passed on.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"shoal-{os.getpid()}-{label}", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix=f"shoal-{os.getpid()}-{label}-") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def map_segment(fd: int, size: int) -> mmap.mmap:
    """The memory behind a descriptor, which may be closed afterwards. Raises ValueError if it is smaller."""
    held = os.fstat(fd).st_size
    if held < size:
        raise ValueError(f"segment has {held} bytes; expected {size}")
    return mmap.mmap(fd, size)
