"""Strict reading and plain writing of quantities: "80 GB" is not "80 GiB", "400 Gb/s" is not "400 GB/s".

Every quantity is kept in one base unit: bytes, bytes a second, FLOP/s, watts, US dollars an hour, seconds. A unit
is matched letter for letter, because upper and lower case tell bytes from bits and mega from milli.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from shoal.specs.errors import SpecError

Dimension = Literal["bytes", "bytes/s", "flop/s", "watts", "usd/h", "seconds"]

_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _with_prefixes(suffix: str, scale: float = 1.0, binary: bool = False) -> dict[str, float]:
    prefixes = {**_SI, **_BINARY} if binary else _SI
    return {prefix + suffix: factor * scale for prefix, factor in prefixes.items()}


UNITS: Mapping[Dimension, Mapping[str, float]] = MappingProxyType(
    {
        "bytes": _with_prefixes("B", binary=True),
        "bytes/s": _with_prefixes("B/s", binary=True)
        | _with_prefixes("b/s", 1 / 8)
        | _with_prefixes("bit/s", 1 / 8),
        "flop/s": _with_prefixes("FLOP/s") | _with_prefixes("OP/s"),
        "watts": {"W": 1.0, "kW": 1e3},
        "usd/h": {"USD/h": 1.0},
        "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    }
)

_EXAMPLES: Mapping[Dimension, str] = MappingProxyType(
    {
        "bytes": "'80 GB' or '79.18 GiB'",
        "bytes/s": "'3.35 TB/s' or '400 Gb/s'",
        "flop/s": "'989 TFLOP/s' (or 'TOP/s' for integer rates)",
        "watts": "'700 W' or '0.7 kW'",
        "usd/h": "'1.17 USD/h'",
        "seconds": "'200 ms' or '1.5 s'",
    }
)

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:_\d+)*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\S+)")


def parse_quantity(text: object, dimension: Dimension, field: str) -> float:
    """A quantity such as "80 GB" as a positive float in the dimension's base unit.

    Raises `SpecError` naming the field, the value and what is accepted, for anything but text holding one number
    and one unit of that dimension, and for a number that is negative, zero or not finite.
    """
    accepted = f"a number and a unit, for example {_EXAMPLES[dimension]}"
    if not isinstance(text, str):
        raise SpecError(field, text, f"{accepted}; a bare number has no unit")
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise SpecError(field, text, accepted)
    number, unit = float(match[1].replace("_", "")), match[2]
    scale = UNITS[dimension].get(unit)
    if scale is None:
        raise SpecError(field, text, f"{accepted}; {_unit_hint(unit, dimension)}")
    value = number * scale
    if not math.isfinite(value) or value <= 0:
        raise SpecError(field, text, f"a quantity greater than zero, for example {_EXAMPLES[dimension]}")
    return value


def _unit_hint(unit: str, dimension: Dimension) -> str:
    for other, units in UNITS.items():
        if unit in units:
            return f"{unit!r} is a unit of {other}, this field is in {dimension}"
    near = [known for known in UNITS[dimension] if known.lower() == unit.lower()]
    if near:
        return f"{unit!r} could be {' or '.join(near)}: case matters"
    return f"{unit!r} is not a unit of {dimension}"


_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([KMBT]?)")
_DECIMAL = MappingProxyType({"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12})


def parse_count(text: str, field: str) -> float:
    """A number of parameters or users such as "70B", "1.04T" or "200": decimal suffixes K, M, B, T."""
    match = _COUNT.fullmatch(text.strip())
    value = float(match[1]) * _DECIMAL[match[2]] if match else 0.0
    if not 0 < value < math.inf:
        raise SpecError(field, text, "a number greater than zero such as 70B, 1.04T, 135M or 200")
    return value


def parse_tokens(text: str, field: str) -> int:
    """A length in tokens such as "8192", "8K" or "1M", where K is 1024 and M its square, as contexts are named."""
    match = _COUNT.fullmatch(text.strip())
    scale = {"": 1, "K": 1024, "M": 1024**2}.get(match[2]) if match else None
    value = float(match[1]) * scale if match and scale else 0.0
    if not 1 <= value < math.inf or not value.is_integer():
        raise SpecError(field, text, "a whole number of tokens such as 8192, 8K (8192) or 1M")
    return int(value)


def gigabytes(value: float) -> str:
    """Bytes in both conventions, e.g. "80.0 GB (74.5 GiB)", so that neither can be taken for the other."""
    return f"{value / 1e9:,.1f} GB ({value / 2**30:,.1f} GiB)"


def decimal_bytes(value: float) -> str:
    """Bytes with a decimal prefix and three significant digits or more: "328 KB", "2.68 GB", "1.03 TB"."""
    magnitude = abs(value)
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if magnitude >= scale:
            scaled = value / scale
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 100 else f"{scaled:.3g} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as people say them: "1.4 s", "76 ms", "35 µs"."""
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
