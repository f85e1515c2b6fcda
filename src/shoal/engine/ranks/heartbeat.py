"""The heartbeat board: one line of shared memory a rank, by which the executor sees who is alive and who waits.

    beats   counted up by a thread of the rank, also while it computes; a stopped process doesn't
    watch   whom the rank waits for in a collective: wait number << 32 | lock-step << 31 | (rank + 1); 0: nobody

Nobody writes a time: the reader notes when it last saw a value change, so clocks of processes don't matter.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.engine.parallel.shm_layout import map_segment

_LINE_WORDS = 16
"""128 bytes: nobody's beat takes a cache line from another rank's wait."""
_LOCK_STEP = 1 << 31


@dataclass(frozen=True, slots=True)
class Wait:
    """Whom a rank waits for."""

    number: int
    """Of this rank's waits; the same wait has the same number."""
    rank: int
    lock_step: bool
    """The two move in lock-step, so that waiting long means that the other one is late."""


class BeatBoard:
    """The board of `ranks` ranks. Ranks write their own line, the executor reads all."""

    def __init__(self, fd: int, ranks: int) -> None:
        self._memory = map_segment(fd, self.size(ranks))
        self._words: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64).reshape(-1, _LINE_WORDS)

    @staticmethod
    def size(ranks: int) -> int:
        return -(-ranks * _LINE_WORDS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE

    def beat(self, rank: int) -> None:
        self._words[rank, 0] += np.uint64(1)

    def beats(self, rank: int) -> int:
        return int(self._words[rank, 0])

    def watch_word(self, rank: int) -> memoryview:
        """The eight bytes that the rank's collectives write to."""
        return memoryview(self._words[rank]).cast("B")[8:16]

    def wait(self, rank: int) -> Wait | None:
        word = int(self._words[rank, 1])
        if word == 0:
            return None
        return Wait(word >> 32, (word & (_LOCK_STEP - 1)) - 1, bool(word & _LOCK_STEP))

    def close(self) -> None:
        """Unmap. The executor's only: a rank's collectives write through `watch_word`."""
        self._words = np.empty((0, _LINE_WORDS), np.uint64)
        self._memory.close()


class Lateness:
    """Says which rank has failed by what the board shows over time. Pure: the caller brings the clock.

    Lock-step ranks have equal shares of a layer's work, so one that others wait for, while it waits for nobody, is
    late. A pipeline stage may wait for the one before it as long as a step takes.
    """

    def __init__(self, ranks: int, now: float) -> None:
        self._beats: list[tuple[int, float]] = [(-1, now)] * ranks
        self._waits: list[tuple[Wait | None, float]] = [(None, now)] * ranks

    def observe(self, rank: int, beats: int, wait: Wait | None, now: float) -> None:
        if beats != self._beats[rank][0]:
            self._beats[rank] = (beats, now)
        if wait != self._waits[rank][0]:
            self._waits[rank] = (wait, now)

    def forgive(self, now: float) -> None:
        """Start all times anew: for an observer that was itself away."""
        self._beats = [(count, now) for count, _ in self._beats]
        self._waits = [(wait, now) for wait, _ in self._waits]

    def silent(self, limit: float, now: float) -> tuple[int, float] | None:
        """The rank that has been without a beat for longest, and for how long, if that is `limit` or more."""
        rank = min(range(len(self._beats)), key=lambda r: self._beats[r][1])
        age = now - self._beats[rank][1]
        return (rank, age) if age >= limit else None

    def late(self, limit: float, now: float) -> tuple[int, float] | None:
        """A rank that others in lock-step with it have been waiting for, `limit` seconds or more."""
        found: list[tuple[float, int]] = []
        for wait, since in self._waits:
            if wait is None or not wait.lock_step or now - since < limit:
                continue
            theirs = self._waits[wait.rank][0]
            # Two that wait for each other went different ways; either name will do.
            if theirs is None or (theirs.lock_step and self._waits[theirs.rank][0] is wait):
                found.append((now - since, wait.rank))
        if not found:
            return None
        age, rank = max(found, key=lambda entry: (entry[0], -entry[1]))
        return rank, age
