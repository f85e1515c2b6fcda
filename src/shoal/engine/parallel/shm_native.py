"""The compiled side of shared-memory groups: csrc/collectives.cpp through ctypes, which lets go of the GIL."""

import ctypes
import functools
import importlib.machinery
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.parallel.shm_layout import MAX_RANKS


class ShoalGroup(ctypes.Structure):
    """One rank's end of a group, as in csrc/collectives.cpp."""

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
    group = ctypes.POINTER(ShoalGroup)
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
    if library.shoal_group_bytes() != ctypes.sizeof(ShoalGroup):
        raise OSError(f"{path.name} is of another version: build the package again")
    return library


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
