"""The shared-memory protocol in Python, for an installation without a compiler. Same layout, same sums, slower.

It relies on stores becoming visible in program order, which x86 guarantees and other processors don't. Waiting is
by short sleeps: there is no wake-up call from here, and the compiled side sleeps with a time limit.
"""

import mmap
import os
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.engine.parallel.shm_layout import SegmentLayout

_YIELD_SECONDS = 200e-6
_FIRST_SLEEP, _LAST_SLEEP = 50e-6, 2e-3
_ANNOUNCE_SECONDS = 1e-3

Bytes = NDArray[np.uint8]


class PythonTransport:
    """One rank's end of a group. Every method returns -1, or the index of the rank that did not come in time."""

    def __init__(
        self,
        memory: mmap.mmap,
        layout: SegmentLayout,
        index: int,
        *,
        timeout: float,
        world: Sequence[int],
        watch: memoryview | None = None,
        lock_step: bool = False,
    ) -> None:
        self._memory: Bytes = np.frombuffer(memory, np.uint8)
        self._layout = layout
        self._ranks, self._index = layout.ranks, index
        self._timeout = timeout
        self._world = tuple(world)
        self._watch = None if watch is None else np.frombuffer(watch, np.uint64)
        self._flag = (1 << 31) if lock_step else 0
        self._round = self._waits = 0
        self._sent = [0] * layout.ranks
        self._taken = [0] * layout.ranks
        self.waited = 0.0

    def barrier(self) -> int:
        return self._publish(np.empty(0, np.uint8))

    def all_reduce(self, tensor: Tensor) -> int:
        data = _bytes(tensor)
        for start, end in self._pieces(len(data)):
            if (missing := self._publish(data[start:end])) >= 0:
                return missing
            self._sum(tensor.dtype, data[start:end])
        return -1

    def _sum(self, dtype: torch.dtype, out: Bytes) -> None:
        parts = [
            torch.from_numpy(self._slot(rank, self._round - 1)[: len(out)]).view(dtype)
            for rank in range(self._ranks)
        ]
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        total = parts[0].to(wide, copy=True)
        for part in parts[1:]:
            total += part.to(wide)
        torch.from_numpy(out).view(dtype).copy_(total)

    def all_gather(self, tensor: Tensor, outs: Sequence[Tensor], sizes: Sequence[int]) -> int:
        data, targets = _bytes(tensor), [_bytes(out) for out in outs]
        for start, end in self._pieces(max(sizes)):
            if (missing := self._publish(data[: sizes[self._index]][start:end])) >= 0:
                return missing
            for rank, target in enumerate(targets):
                length = min(end, sizes[rank]) - start
                if length > 0:
                    source = data[start:] if rank == self._index else self._slot(rank, self._round - 1)
                    target[start : start + length] = source[:length]
        return -1

    def counts(self, mine: Sequence[int]) -> tuple[int, list[list[int]]]:
        missing = self._publish(np.array(mine, np.uint64).view(np.uint8))
        length = self._ranks * 8
        table = [self._slot(rank, self._round - 1)[:length].view(np.uint64).tolist() for rank in range(self._ranks)]
        return missing, table

    def all_to_all(self, tensor: Tensor, outs: Sequence[Tensor], table: Sequence[Sequence[int]]) -> int:
        data, targets = _bytes(tensor), [_bytes(out) for out in outs]
        for start, end in self._pieces(max(sum(row) for row in table)):
            if (missing := self._publish(data[start:end])) >= 0:
                return missing
            for rank, (row, target) in enumerate(zip(table, targets, strict=True)):
                first = sum(row[: self._index])
                low, high = max(first, start), min(first + row[self._index], end)
                if low < high:
                    piece = data[start:end] if rank == self._index else self._slot(rank, self._round - 1)
                    target[low - first : high - first] = piece[low - start : high - start]
        return -1

    def send(self, tensor: Tensor, target: int) -> int:
        data = _bytes(tensor)
        for start, end in self._pieces(len(data)):
            number = self._sent[target]
            room = self._layout.taken(self._index, target)
            if not self._await(room, number + 1 - self._layout.depth, target):
                return target
            offset = self._layout.ring(self._index, target, number)
            self._memory[offset : offset + end - start] = data[start:end]
            self._sent[target] = number + 1
            self._post(self._layout.sent(self._index, target), number + 1)
        return -1

    def recv(self, tensor: Tensor, source: int) -> int:
        data = _bytes(tensor)
        for start, end in self._pieces(len(data)):
            number = self._taken[source]
            if not self._await(self._layout.sent(source, self._index), number + 1, source):
                return source
            offset = self._layout.ring(source, self._index, number)
            data[start:end] = self._memory[offset : offset + end - start]
            self._taken[source] = number + 1
            self._post(self._layout.taken(source, self._index), number + 1)
        return -1

    def _pieces(self, size: int) -> list[tuple[int, int]]:
        step = self._layout.slot_bytes
        return [(start, min(start + step, size)) for start in range(0, size, step)]

    def _slot(self, rank: int, turn: int) -> Bytes:
        offset = self._layout.slot(rank, turn)
        return self._memory[offset : offset + self._layout.slot_bytes]

    def _publish(self, data: Bytes) -> int:
        self._slot(self._index, self._round)[: len(data)] = data
        self._round += 1
        self._post(self._layout.posted(self._index), self._round)
        for rank in range(self._ranks):
            if rank != self._index and not self._await(self._layout.posted(rank), self._round, rank):
                return rank
        return -1

    def _post(self, offset: int, value: int) -> None:
        self._memory[offset : offset + 4].view(np.uint32)[0] = value & 0xFFFFFFFF

    def _reached(self, offset: int, value: int) -> bool:
        stamp = int(self._memory[offset : offset + 4].view(np.uint32)[0])
        return (stamp - value) & 0xFFFFFFFF < 1 << 31

    def _await(self, offset: int, value: int, whom: int) -> bool:
        if self._reached(offset, value):
            return True
        start = now = time.monotonic()
        nap, announced, there = _FIRST_SLEEP, False, False
        while not there and now - start < self._timeout:
            if now - start < _YIELD_SECONDS and hasattr(os, "sched_yield"):
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LAST_SLEEP)
            if not announced and self._watch is not None and now - start > _ANNOUNCE_SECONDS:
                self._waits += 1
                self._watch[0] = (self._waits & 0xFFFFFFFF) << 32 | self._flag | (self._world[whom] + 1)
                announced = True
            there = self._reached(offset, value)
            now = time.monotonic()
        if announced and there and self._watch is not None:
            self._watch[0] = 0
        self.waited += now - start
        return there


def _bytes(tensor: Tensor) -> Bytes:
    """The memory of a contiguous tensor."""
    view: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return view
