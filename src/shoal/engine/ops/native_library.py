"""The compiled kernels: csrc/kernels through ctypes, which lets go of the GIL while one runs.

Arguments go over as one packed struct per call: packing takes a fraction of what ctypes takes to convert as many
single arguments.
"""

import ctypes
import functools
import importlib.machinery
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from shoal.engine.errors import EngineError
from shoal.engine.ops.native_interface import read_interface

R = TypeVar("R")
INTERFACE = 0x8C11A11E
"""Checksum of the interface that this package is written for: `NativeLibrary.checksum`."""
NOT_BUILT = "the package was built without a C++ compiler: install one and build the package again"


class KernelError(EngineError):
    """A kernel could not allocate scratch memory."""


class OnDemand(Generic[R]):
    """Attributes that `make` makes of their names when they are first used."""

    def __init__(self, make: Callable[[str], Callable[..., R]]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Callable[..., R]:
        made = self._make(name)
        setattr(self, name, made)
        return made


class NativeLibrary:
    """One build of the kernels, called as its own text of csrc/kernels/interface.h says.

    Raises OSError for a file that is no such library.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        try:
            library.shoal_interface.restype = ctypes.c_char_p
            text: bytes = library.shoal_interface()
        except AttributeError as error:
            raise OSError(f"{_outdated(path)} ({error})") from None
        self._library = library
        self._interface = read_interface(text.decode())
        self.checksum = zlib.crc32(text)
        self.structs, self.constants = self._interface.structs, self._interface.constants
        self.functions: OnDemand[Any] = OnDemand(self._function)
        """The functions of the interface, with their arguments in order."""
        self.pack: OnDemand[bytes] = OnDemand(self._packer)
        """Of every struct, a function from its fields, all by name, to bytes; nested structs are bytes."""

    def isas(self) -> tuple[str, ...]:
        """Instruction sets that it has kernels for and this processor has, best first."""
        return tuple(name for index, name in reversed(self._names()) if self.functions.isa_runs(index))

    def kernels(self, isa: str) -> OnDemand[int]:
        """The kernels of an instruction set: functions of their packed struct.

        They run on as many threads as torch is set to use, so that one setting holds for both. They return 0, or
        what the interface says, and raise KernelError when scratch memory cannot be allocated.
        """
        return OnDemand(functools.partial(self._kernel, self.index(isa)))

    def index(self, isa: str) -> int:
        """What functions are told an instruction set by. Raises ValueError for one without kernels."""
        for index, name in self._names():
            if name == isa:
                return index
        raise ValueError(f"no kernels for {isa!r}")

    def _names(self) -> list[tuple[int, str]]:
        names: list[tuple[int, str]] = []
        while (name := self.functions.isa_name(len(names))) is not None:
            names.append((len(names), name.decode()))
        return names

    def _function(self, name: str) -> Callable[..., Any]:
        declared = self._interface.functions[name]
        function: Callable[..., Any] = getattr(self._library, f"shoal_{name}")
        function.argtypes, function.restype = declared.arguments, declared.result  # type: ignore[attr-defined]
        return function

    def _kernel(self, index: int, name: str) -> Callable[[bytes], int]:
        function, threads = self._function(name), torch.get_num_threads

        def run(packed: bytes) -> int:
            result: int = function(index, threads(), packed)
            if result == 1:
                raise KernelError(f"{name}: cannot allocate scratch memory")
            return result

        return run

    def _packer(self, name: str) -> Callable[..., bytes]:
        """A function of a struct's fields by name. Generated, as `dataclasses` generates `__init__`: to collect
        fields in a dict and to sort them takes longer than to pack them.
        """
        of = self.structs[name]
        fields = ", ".join(of.fields)
        scope: dict[str, Callable[..., bytes]] = {"pack": struct.Struct(of.format).pack}
        exec(f"def packer(*, {fields}): return pack({fields})", scope)
        return scope["packer"]


def _outdated(path: Path) -> str:
    return f"{path} was built from other sources: build it again, by `make` or `pip install -e .`"


@dataclass(frozen=True, slots=True)
class Backend:
    """Which of the compiled kernels run here."""

    library: NativeLibrary | None
    isas: tuple[str, ...]
    """Instruction sets that this machine can run, best first."""
    detail: str
    """The best of them, or why there is none."""


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
        library = NativeLibrary(path)
    except OSError as error:
        return Backend(None, (), str(error))
    if library.checksum != INTERFACE:
        return Backend(None, (), f"{_outdated(path)} (interface {library.checksum:#x} instead of {INTERFACE:#x})")
    isas = library.isas()
    return Backend(library, isas, isas[0])
