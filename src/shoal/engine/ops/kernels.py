"""Which implementation of the ops this process uses."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from shoal.engine.errors import InvalidOption
from shoal.engine.ops.native import NativeOps
from shoal.engine.ops.native_library import backend
from shoal.engine.ops.reference_ops import CpuOps, ReferenceOps

REFERENCE: Final = ReferenceOps()


def _native(isa: str | None = None) -> ReferenceOps | None:
    """The compiled kernels, for the best instruction set or the one named; None where they don't run."""
    found = backend()
    if found.library is None or (isa is not None and isa not in found.isas):
        return None
    return NativeOps(found.library, isa or found.isas[0])


_CANDIDATES: Final[Mapping[str, Callable[[], ReferenceOps | None]]] = MappingProxyType(
    {
        "native": _native,
        "native-avx512": partial(_native, "avx512"),
        "native-avx2": partial(_native, "avx2"),
        "native-portable": partial(_native, "portable"),
        "cpu": CpuOps,
        "reference": lambda: REFERENCE,
    }
)
"""Best first. An entry gives None where it can't run: not built, or not for this processor."""


def select_kernels(name: str | None = None) -> ReferenceOps:
    """The implementation called `name`, or the best that runs here. Raises InvalidOption for one that doesn't."""
    if name is None:
        return next(kernels for make in _CANDIDATES.values() if (kernels := make()) is not None)
    make = _CANDIDATES.get(name)
    kernels = make() if make else None
    if kernels is None:
        why = f" (compiled kernels: {backend().detail})" if name.startswith("native") else ""
        raise InvalidOption("SHOAL_KERNELS", name, "one that runs here, of " + ", ".join(_CANDIDATES) + why)
    return kernels
