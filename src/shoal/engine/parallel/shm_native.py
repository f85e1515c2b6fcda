"""The compiled side of shared-memory groups: csrc/collectives.cpp through ctypes, which lets go of the GIL."""

import ctypes
import importlib.machinery
import mmap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.engine.parallel.shm_layout import MAX_RANKS, SegmentLayout

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int64: 2}


class _Group(ctypes.Structure):
    """Mirrors ShoalGroup in csrc/collectives.cpp."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("slot_bytes", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("spin_ns", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
        ("watch", ctypes.c_void_p),
        ("watch_flag", ctypes.c_uint64),
        ("world", ctypes.POINTER(ctypes.c_uint32)),
        ("ranks", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("round", ctypes.c_uint32),
        ("waits", ctypes.c_uint32),
        ("sent", ctypes.c_uint32 * MAX_RANKS),
        ("taken", ctypes.c_uint32 * MAX_RANKS),
    )


def find_library() -> Path | None:
    """The compiled library beside this file, if the package was built with a compiler."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_collectives" + suffix)
        if path.is_file():
            return path
    return None


def load_library(path: Path) -> ctypes.CDLL:
    """Raises OSError when it cannot be loaded or is of another version."""
    library = ctypes.CDLL(str(path))
    pointer, u64, u32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    group = ctypes.POINTER(_Group)
    signatures: dict[str, tuple[object, ...]] = {
        "shoal_barrier": (group,),
        "shoal_all_reduce": (group, pointer, u64, ctypes.c_int),
        "shoal_all_gather": (group, pointer, ctypes.POINTER(pointer), ctypes.POINTER(u64)),
        "shoal_counts": (group, ctypes.POINTER(u64), ctypes.POINTER(u64)),
        "shoal_all_to_all": (group, pointer, ctypes.POINTER(pointer), ctypes.POINTER(u64)),
        "shoal_send": (group, pointer, u64, u32),
        "shoal_recv": (group, pointer, u64, u32),
    }
    try:
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
        library.shoal_group_bytes.restype = u64
        library.shoal_segment_bytes.argtypes = (u32, u64, u32)
        library.shoal_segment_bytes.restype = u64
    except AttributeError as error:
        raise OSError(f"{path.name} is of another version: {error}") from None
    if library.shoal_group_bytes() != ctypes.sizeof(_Group):
        raise OSError(f"{path.name} is of another version: build the package again")
    return library


class NativeTransport:
    """One rank's end of a group. Every method returns -1, or the index of the rank that did not come in time."""

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: mmap.mmap,
        layout: SegmentLayout,
        index: int,
        *,
        timeout: float,
        spin: float,
        world: Sequence[int],
        watch: memoryview | None = None,
        lock_step: bool = False,
    ) -> None:
        self._library = library
        # Views keep the mapping alive for as long as the library may touch it.
        self._base = (ctypes.c_uint8 * layout.size).from_buffer(memory)
        self._watch = None if watch is None else ctypes.c_uint64.from_buffer(watch)
        self._world = (ctypes.c_uint32 * layout.ranks)(*world)
        self._ranks = layout.ranks
        self._group = _Group(
            base=ctypes.addressof(self._base),
            slot_bytes=layout.slot_bytes,
            timeout_ns=int(timeout * 1e9),
            spin_ns=int(spin * 1e9),
            watch=None if self._watch is None else ctypes.addressof(self._watch),
            watch_flag=(1 << 31) if lock_step else 0,
            world=self._world,
            ranks=layout.ranks,
            index=index,
            depth=layout.depth,
        )
        self._at = ctypes.byref(self._group)

    @property
    def waited(self) -> float:
        return float(self._group.waited_ns) * 1e-9

    @property
    def addresses(self) -> tuple[int, int]:
        """Of the compiled all-reduce and of the group it is called with."""
        function = ctypes.cast(self._library.shoal_all_reduce, ctypes.c_void_p).value
        assert function is not None
        return function, ctypes.addressof(self._group)

    def barrier(self) -> int:
        return int(self._library.shoal_barrier(self._at))

    def all_reduce(self, tensor: Tensor) -> int:
        kind = KINDS[tensor.dtype]
        return int(self._library.shoal_all_reduce(self._at, tensor.data_ptr(), tensor.nbytes, kind))

    def all_gather(self, tensor: Tensor, outs: Sequence[Tensor], sizes: Sequence[int]) -> int:
        return int(
            self._library.shoal_all_gather(
                self._at, tensor.data_ptr(), self._pointers(outs), (ctypes.c_uint64 * self._ranks)(*sizes)
            )
        )

    def counts(self, mine: Sequence[int]) -> tuple[int, list[list[int]]]:
        n = self._ranks
        table = (ctypes.c_uint64 * (n * n))()
        missing = int(self._library.shoal_counts(self._at, (ctypes.c_uint64 * n)(*mine), table))
        return missing, [list(table[s * n : s * n + n]) for s in range(n)]

    def all_to_all(self, tensor: Tensor, outs: Sequence[Tensor], table: Sequence[Sequence[int]]) -> int:
        flat = (ctypes.c_uint64 * self._ranks**2)(*(count for row in table for count in row))
        return int(self._library.shoal_all_to_all(self._at, tensor.data_ptr(), self._pointers(outs), flat))

    def send(self, tensor: Tensor, target: int) -> int:
        return int(self._library.shoal_send(self._at, tensor.data_ptr(), tensor.nbytes, target))

    def recv(self, tensor: Tensor, source: int) -> int:
        return int(self._library.shoal_recv(self._at, tensor.data_ptr(), tensor.nbytes, source))

    def _pointers(self, tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
        return (ctypes.c_void_p * self._ranks)(*(t.data_ptr() for t in tensors))
