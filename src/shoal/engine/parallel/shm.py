"""Collectives between the ranks of one host, through shared memory.

Gloo takes about a millisecond for an all-reduce between two processes of one host, as long as a layer of a small
model takes to compute; a store and a load through shared memory take microseconds. Sums are in the order of the
ranks, so every rank holds the same bits. See csrc/collectives.cpp for the protocol.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from shoal.engine.parallel.group import CollectiveTimeout, CompletedWork, Work, gathered_extents
from shoal.engine.parallel.shm_layout import SegmentLayout, map_segment
from shoal.engine.parallel.shm_native import KINDS, NativeTransport, find_library, load_library
from shoal.engine.parallel.sums import RankSums
from shoal.engine.parallel.traffic import TrafficCounters

SPIN_SECONDS = 50e-6
"""How long to spin for others before giving the core away, when every rank has a core: a little more than two
ranks' shares of a small layer differ."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What moves the bytes; None: shared memory cannot be used here. Gloo is the other way, with the same bits."""

    library: ctypes.CDLL | None
    detail: str


@functools.cache
def backend() -> Backend:
    """What ranks on this host use, and why."""
    path = find_library()
    if path is None:
        return Backend(None, "the package was built without a C++ compiler")
    try:
        return Backend(load_library(path), path.name)
    except OSError as error:
        return Backend(None, str(error))


def connect(
    fd: int,
    layout: SegmentLayout,
    index: int,
    *,
    timeout: float,
    world: Sequence[int],
    spin: float = SPIN_SECONDS,
    watch: memoryview | None = None,
    lock_step: bool = False,
) -> NativeTransport:
    """Attach to a segment. `fd` may be closed afterwards; `watch` is the rank's word on the heartbeat board.

    Raises ValueError for a segment that is too small, RuntimeError where shared memory cannot be used.
    """
    found = backend()
    if found.library is None:
        raise RuntimeError(f"shared-memory collectives: {found.detail}")
    return NativeTransport(
        found.library,
        map_segment(fd, layout.size),
        layout,
        index,
        timeout=timeout,
        spin=spin,
        world=world,
        watch=watch,
        lock_step=lock_step,
    )


class ShmGroup:
    """A `Group` of ranks on this host, for tensors on the CPU."""

    is_async = False
    """Rows are copied by the ranks' own threads, so there is nobody to carry them while a rank computes."""

    def __init__(
        self,
        axis: str,
        ranks: Sequence[int],
        index: int,
        transport: NativeTransport,
        traffic: TrafficCounters,
        timeout: float,
    ) -> None:
        self.axis = axis
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.index = index
        self._transport: NativeTransport | None = transport
        self._traffic = traffic
        self._timeout = timeout

    @property
    def waited(self) -> float:
        return self._live.waited

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in KINDS:
            raise TypeError(f"all_reduce over {self.axis}: {tensor.dtype}; accepted: {', '.join(map(str, KINDS))}")
        tensor = tensor.contiguous()
        self._done("all_reduce", self._live.all_reduce(tensor))
        self._traffic.add(self.axis, "all_reduce", tensor.nbytes)
        return tensor

    def row_sums(self) -> RankSums:
        """For compiled code that all-reduces by itself."""

        def done(calls: int, size: int, missing: int) -> None:
            self._done("all_reduce", missing)
            self._traffic.add(self.axis, "all_reduce", calls * size, messages=calls)

        return RankSums(*self._live.addresses, done)

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
        missing = self._live.all_gather(tensor, parts, [row * n for n in extents])
        self._done("all_gather", missing)
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
        missing, table = self._live.counts(sizes)
        self._done("all_to_all", missing)
        row = self._row_bytes(packed, 0)
        rows = [table[source][self.index] // row if row else 0 for source in range(self.size)]
        outs = _cut(packed.new_empty((sum(rows), *packed.shape[1:])), rows)
        self._done("all_to_all", self._live.all_to_all(packed, outs, table))
        self._traffic.add(self.axis, "all_to_all", packed.nbytes, packed.nbytes - sizes[self.index])
        return outs

    def start_all_to_all(self, tensors: Sequence[Tensor], arriving: Sequence[int]) -> Work:
        return CompletedWork(self.all_to_all(tensors))

    def send(self, tensor: Tensor, dst: int) -> None:
        self._peer("send", dst)
        tensor = tensor.contiguous()
        self._done("send", self._live.send(tensor, dst))
        self._traffic.add(self.axis, "send", tensor.nbytes)

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int) -> Tensor:
        self._peer("recv", src)
        tensor = torch.empty(tuple(shape), dtype=dtype)
        self._done("recv", self._live.recv(tensor, src))
        return tensor

    def barrier(self) -> None:
        self._done("barrier", self._live.barrier())
        self._traffic.add(self.axis, "barrier", 0)

    def close(self) -> None:
        self._transport = None

    @property
    def _live(self) -> NativeTransport:
        if self._transport is None:
            raise ValueError(f"the group of {self.axis} is closed")
        return self._transport

    def _peer(self, operation: str, other: int) -> None:
        if not 0 <= other < self.size or other == self.index:
            raise ValueError(f"{operation} over {self.axis}: index {other}; this is {self.index} of {self.size}")

    def _done(self, operation: str, missing: int) -> None:
        if missing >= 0:
            raise CollectiveTimeout(self.axis, operation, self.ranks[missing], self._timeout)


def _cut(whole: Tensor, extents: Sequence[int]) -> list[Tensor]:
    """Views of consecutive runs of rows."""
    ends = list(accumulate(extents))
    return [whole[end - extent : end] for end, extent in zip(ends, extents, strict=True)]
