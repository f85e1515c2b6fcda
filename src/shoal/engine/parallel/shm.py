"""Collectives between the ranks of one host, through shared memory.

Gloo takes about a millisecond for an all-reduce between two processes of one host, as long as a layer of a small
model takes to compute; a store and a load through shared memory take microseconds. Sums are in the order of the
ranks, so every rank holds the same bits. See csrc/collectives.cpp for the protocol.
"""

import ctypes
import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from shoal.engine.parallel.group import CollectiveTimeout, CompletedWork, Work, gathered_extents
from shoal.engine.parallel.shm_layout import SegmentLayout, map_segment
from shoal.engine.parallel.shm_native import ShoalGroup, backend
from shoal.engine.parallel.sums import RankSums
from shoal.engine.parallel.traffic import TrafficCounters

SPIN_SECONDS = 50e-6
"""How long to spin for others before giving the core away, when every rank has a core: a little more than two
ranks' shares of a small layer differ."""


_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int64: 2}


class ShmGroup:
    """A `Group` of ranks on this host, for tensors on the CPU."""

    is_async = False
    """Rows are copied by the ranks' own threads, so there is nobody to carry them while a rank computes."""

    def __init__(
        self,
        axis: str,
        ranks: Sequence[int],
        index: int,
        fd: int,
        traffic: TrafficCounters,
        timeout: float,
        *,
        layout: SegmentLayout | None = None,
        spin: float = SPIN_SECONDS,
        watch: memoryview | None = None,
        lock_step: bool = False,
    ) -> None:
        """Attach to the segment `fd`, which may be closed afterwards.

        Args:
            watch: the rank's word on the heartbeat board.
            lock_step: ranks of this axis take the same steps, which a watcher is told.

        Raises ValueError for a segment that is too small, RuntimeError where shared memory cannot be used.
        """
        found = backend()
        if found.library is None:
            raise RuntimeError(f"shared-memory collectives: {found.detail}")
        self.axis = axis
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.index = index
        self._library = found.library
        self._traffic = traffic
        self._timeout = timeout
        layout = layout or SegmentLayout(self.size)
        # Views keep the mapping alive for as long as the library may touch it.
        self._base = (ctypes.c_uint8 * layout.size).from_buffer(map_segment(fd, layout.size))
        self._watch = None if watch is None else ctypes.c_uint64.from_buffer(watch)
        self._end: ShoalGroup | None = ShoalGroup(
            base=ctypes.addressof(self._base),
            slot_bytes=layout.slot_bytes,
            timeout_ns=int(timeout * 1e9),
            spin_ns=int(spin * 1e9),
            watch=None if self._watch is None else ctypes.addressof(self._watch),
            watch_flag=(1 << 31) if lock_step else 0,
            world=(ctypes.c_uint32 * self.size)(*self.ranks),
            ranks=self.size,
            index=index,
            depth=layout.depth,
        )

    @property
    def waited(self) -> float:
        return float(self._live.waited_ns) * 1e-9

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in _KINDS:
            raise TypeError(f"all_reduce over {self.axis}: {tensor.dtype}; accepted: {', '.join(map(str, _KINDS))}")
        tensor = tensor.contiguous()
        self._call("all_reduce", tensor.data_ptr(), tensor.nbytes, _KINDS[tensor.dtype])
        self._traffic.add(self.axis, "all_reduce", tensor.nbytes)
        return tensor

    def row_sums(self) -> RankSums:
        """For compiled code that all-reduces by itself."""

        def done(calls: int, size: int, missing: int) -> None:
            self._done("all_reduce", missing)
            self._traffic.add(self.axis, "all_reduce", calls * size, messages=calls)

        function = ctypes.cast(self._library.shoal_all_reduce, ctypes.c_void_p).value
        assert function is not None
        return RankSums(function, ctypes.addressof(self._live), done)

    def all_gather(self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        tensor = tensor.contiguous()
        dim = dim % tensor.dim()
        extents = gathered_extents(self, tensor, dim, sizes)
        row = tensor.nbytes // extents[self.index] if extents[self.index] else self._row_bytes(tensor, dim)
        if dim == 0:
            whole = tensor.new_empty((sum(extents), *tensor.shape[1:]))
            parts = _cut(whole, extents)
        else:
            parts = [tensor.new_empty((*tensor.shape[:dim], n, *tensor.shape[dim + 1 :])) for n in extents]
        sizes_bytes = (ctypes.c_uint64 * self.size)(*(row * n for n in extents))
        self._call("all_gather", tensor.data_ptr(), self._pointers(parts), sizes_bytes)
        self._traffic.add(self.axis, "all_gather", tensor.nbytes)
        return whole if dim == 0 else torch.cat(parts, dim)

    @staticmethod
    def _row_bytes(tensor: Tensor, dim: int) -> int:
        return int(math.prod((*tensor.shape[:dim], *tensor.shape[dim + 1 :]))) * tensor.element_size()

    def all_to_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if len(tensors) != self.size:
            raise ValueError(f"all_to_all over {self.axis}: {len(tensors)} tensors for {self.size} ranks")
        packed = torch.cat(list(tensors))
        sizes = [t.nbytes for t in tensors]
        # Bytes from every rank to every rank, row by row.
        table = (ctypes.c_uint64 * self.size**2)()
        self._call("counts", (ctypes.c_uint64 * self.size)(*sizes), table)
        row = self._row_bytes(packed, 0)
        rows = [table[source * self.size + self.index] // row if row else 0 for source in range(self.size)]
        outs = _cut(packed.new_empty((sum(rows), *packed.shape[1:])), rows)
        self._call("all_to_all", packed.data_ptr(), self._pointers(outs), table)
        self._traffic.add(self.axis, "all_to_all", packed.nbytes, packed.nbytes - sizes[self.index])
        return outs

    def start_all_to_all(self, tensors: Sequence[Tensor], arriving: Sequence[int]) -> Work:
        return CompletedWork(self.all_to_all(tensors))

    def send(self, tensor: Tensor, dst: int) -> None:
        self._peer("send", dst)
        tensor = tensor.contiguous()
        self._call("send", tensor.data_ptr(), tensor.nbytes, dst)
        self._traffic.add(self.axis, "send", tensor.nbytes)

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int) -> Tensor:
        self._peer("recv", src)
        tensor = torch.empty(tuple(shape), dtype=dtype)
        self._call("recv", tensor.data_ptr(), tensor.nbytes, src)
        return tensor

    def barrier(self) -> None:
        self._call("barrier")
        self._traffic.add(self.axis, "barrier", 0)

    def close(self) -> None:
        self._end = None

    @property
    def _live(self) -> ShoalGroup:
        if self._end is None:
            raise ValueError(f"the group of {self.axis} is closed")
        return self._end

    def _call(self, operation: str, *arguments: object) -> None:
        function = getattr(self._library, f"shoal_{operation}")
        self._done(operation, function(ctypes.byref(self._live), *arguments))

    def _pointers(self, tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
        return (ctypes.c_void_p * self.size)(*(t.data_ptr() for t in tensors))

    def _peer(self, operation: str, other: int) -> None:
        if not 0 <= other < self.size or other == self.index:
            raise ValueError(f"{operation} over {self.axis}: index {other}; this is {self.index} of {self.size}")

    def _done(self, operation: str, missing: int) -> None:
        """Compiled calls return -1, or the index of the rank that did not come in time."""
        if missing >= 0:
            raise CollectiveTimeout(self.axis, operation, self.ranks[missing], self._timeout)


def _cut(whole: Tensor, extents: Sequence[int]) -> list[Tensor]:
    """Views of consecutive runs of rows."""
    ends = list(accumulate(extents))
    return [whole[end - extent : end] for end, extent in zip(ends, extents, strict=True)]
