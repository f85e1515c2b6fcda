"""The compiled kernels: csrc/kernels through ctypes, which lets go of the GIL while one runs.

Arguments go over as one packed struct a call, laid out as csrc/kernels/kernels.h says: packing takes a fraction of
what ctypes takes to convert as many single arguments.
"""

import ctypes
import functools
import importlib.machinery
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.engine.errors import EngineError

VERSION = 7
"""As `shoal_kernels_version` in csrc/kernels/api.cpp."""
NOT_BUILT = "the package was built without a C++ compiler: install one and build the package again"
SPIN_SECONDS = 50e-6
"""How long an idle thread looks for work before it sleeps: a little more than is between two kernels of a step."""

LINEAR = struct.Struct("4P5qi")
RMS_NORM = struct.Struct("4P5qf2i")
GATED_PRODUCT = struct.Struct("2P3q2i2f")
ROPE_WRITE = struct.Struct("8P9q2i2Pi")
ATTENTION = struct.Struct("9P15q2f2i2P")


@dataclass(frozen=True, slots=True)
class Backend:
    """Which of the compiled kernels run here."""

    library: ctypes.CDLL | None
    kinds: tuple[str, ...]
    """Processor kinds this machine can run, best first."""
    detail: str
    """The best kind, or why there is none."""


def find_library() -> Path | None:
    """The compiled library beside this file, if the package was built with a compiler.

    SHOAL_KERNELS_LIBRARY names another build of it (`make sanitize` does); set to nothing, there is none.
    """
    if (named := os.environ.get("SHOAL_KERNELS_LIBRARY")) is not None:
        return Path(named) if named else None
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_kernels" + suffix)
        if path.is_file():
            return path
    return None


@functools.cache
def backend() -> Backend:
    """What this process can use, found once."""
    path = find_library()
    if path is None:
        return Backend(None, (), NOT_BUILT)
    try:
        library = _load(path)
    except OSError as error:
        return Backend(None, (), str(error))
    names: list[str] = []
    while (name := library.shoal_kernels_name(len(names))) is not None:
        names.append(name.decode())
    kinds = tuple(name for kind, name in reversed(list(enumerate(names))) if library.shoal_kernels_run(kind))
    return Backend(library, kinds, kinds[0])


def kind_index(library: ctypes.CDLL, name: str) -> int:
    """Raises ValueError for a kind that the library doesn't have."""
    kind = 0
    while (found := library.shoal_kernels_name(kind)) is not None:
        if found.decode() == name:
            return kind
        kind += 1
    raise ValueError(f"no kernels for {name!r}")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    try:
        library.shoal_kernels_version.restype = ctypes.c_int
        library.shoal_kernels_name.restype = ctypes.c_char_p
        library.shoal_kernels_run.argtypes = (ctypes.c_int,)
        library.shoal_pool.argtypes = (ctypes.c_int, ctypes.c_long)
        library.shoal_pool.restype = None
        for name in ("linear", "rms_norm", "gated_product", "rope_write", "attention"):
            function = getattr(library, f"shoal_{name}")
            function.argtypes = (ctypes.c_int, ctypes.c_char_p)
            function.restype = ctypes.c_int
    except AttributeError as error:
        raise OSError(f"{path.name} is of another version: {error}") from None
    if library.shoal_kernels_version() != VERSION:
        raise OSError(f"{path.name} is of another version: build the package again")
    return library


class KernelError(EngineError):
    """A kernel could not get the memory it works in."""


class Pool:
    """Sizes the library's threads: as many as torch is set to use, so that one setting holds for both."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def follow(self) -> None:
        threads = torch.get_num_threads()
        if threads != self._library.shoal_pool_threads():
            self._library.shoal_pool(threads, int(SPIN_SECONDS * 1e9))
