"""The one reader of numbers as people type them: counts, tokens, shares, percentiles, times, rates, money, sizes.

The command line, the planner page and catalogue files all read with these functions, so that a text means the same
wherever it is typed. Each returns a number in its base unit (bytes, bytes/s, FLOP/s, watts, US dollars per hour,
seconds, requests per second) or raises `SpecError` with the field, the text and what is accepted. Nothing is
guessed: a text with two readings (`0,5`, `100 gb/s`, a time without a unit) is an error that names both.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeVar

from shoal.specs.errors import SpecError, near_names

Dimension = Literal["bytes", "bytes/s", "flop/s", "watts", "usd/h", "seconds"]
Value = TypeVar("Value")

_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_HOUR = 3600.0


def _prefixed(suffixes: Sequence[str], scale: float = 1.0, binary: bool = False) -> dict[str, float]:
    prefixes = {**_SI, **_BINARY} if binary else _SI
    return {prefix + suffix: factor * scale for prefix, factor in prefixes.items() for suffix in suffixes}


UNITS: Mapping[Dimension, Mapping[str, float]] = MappingProxyType(
    {
        "bytes": _prefixed(["B"], binary=True),
        "bytes/s": _prefixed(["B/s", "Bps"], binary=True) | _prefixed(["b/s", "bps", "bit/s", "bits/s"], 1 / 8),
        "flop/s": _prefixed(["FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS", "OPs"]),
        "watts": {"W": 1.0, "kW": 1e3},
        "usd/h": {"USD/h": 1.0},
        "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": _HOUR},
    }
)
"""Units as they are written. A unit that matches no entry letter for letter is then looked up in `_FOLDED`."""

_FOLDED: Mapping[Dimension, Mapping[str, float]] = MappingProxyType(
    {
        # Nobody counts memory in bits, so that case decides nothing: 80gb, 80G and 80 GB are one size.
        "bytes": {u.lower(): f for u, f in _prefixed(["B", "iB", ""]).items() if u}
        | {u.lower(): f for u, f in _prefixed(["B", ""], binary=True).items() if "i" in u},
        # "gbps" is bits by custom; "gb/s" in small letters is written for both, and stays an error.
        "bytes/s": {
            u.lower(): f for u, f in _prefixed(["bps", "bit/s", "bits/s", "bitps"], 1 / 8).items()
        },
        "flop/s": {u.lower(): f for u, f in _prefixed(["FLOP/s", "FLOPS", "OP/s", "OPS"]).items()},
        "watts": {"w": 1.0, "kw": 1e3, "watt": 1.0, "watts": 1.0},
        "usd/h": {},
        "seconds": {
            "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3,
            "msecs": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
            "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": _HOUR, "hr": _HOUR, "hour": _HOUR,
            "hours": _HOUR,
        },
    }
)  # fmt: skip
_WRONG_CASE: Mapping[Dimension, re.Pattern[str]] = MappingProxyType(
    {"bytes/s": re.compile(r"[kmgtp]b/s|[KMGTP]BPS")}
)

_EXAMPLES: Mapping[Dimension, str] = MappingProxyType(
    {
        "bytes": "'80 GB' or '79.18 GiB'",
        "bytes/s": "'3.35 TB/s', '400 Gb/s' or '400gbps'",
        "flop/s": "'989 TFLOP/s' (or 'TOP/s' for integer rates)",
        "watts": "'700 W' or '0.7 kW'",
        "usd/h": "'$2/h', '1.17 USD/h' or '$1,440/month'",
        "seconds": "'200ms' or '1.5s'",
    }
)

_NUMBER = r"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[^\s\d.,+-].*)?")
_MONEY = re.compile(
    rf"(?:US)?\$?\s*(?P<number>{_NUMBER})\s*(?:usd|dollars?|\$)?\s*(?:(?:/|per|an?)\s*(?P<per>[a-z]+))?", re.I
)
_PER_HOUR = {
    "h": 1.0, "hr": 1.0, "hour": 1.0, "d": 24.0, "day": 24.0, "week": 168.0, "month": 730.0, "mo": 730.0,
    "year": 8760.0, "y": 8760.0, "yr": 8760.0,
}  # fmt: skip


def _split(text: str, field: str, accepted: str, typed: str | None = None) -> tuple[float, str]:
    """(number, what follows it) of a text, or an error that explains a decimal comma.

    Args:
        typed: what the person wrote, where `text` is a part of it.
    """
    cleaned = text.strip()
    match = _QUANTITY.fullmatch(cleaned)
    if match is None:
        raise SpecError(field, text if typed is None else typed, accepted + _comma_hint(cleaned))
    return float(match["number"].replace(",", "").replace("_", "")), (match["unit"] or "").strip()


def _comma_hint(text: str) -> str:
    if re.match(r"[+-]?\d+,\d", text):
        return "; a comma separates thousands (8,192), a point the fraction (0.5)"
    return ""


def parse_quantity(text: object, dimension: Dimension, field: str) -> float:
    """A quantity such as "80 GB" as a positive float in the dimension's base unit.

    Raises `SpecError` naming the field, the value and what is accepted, for anything but text holding one number
    and one unit of that dimension, and for a number that is negative, zero or not finite.
    """
    accepted = f"a number and a unit, for example {_EXAMPLES[dimension]}"
    if not isinstance(text, str):
        raise SpecError(field, text, f"{accepted}; a bare number has no unit")
    if dimension == "usd/h":
        value = _money(text, field, accepted)
    else:
        number, unit = _split(text, field, accepted)
        if not unit:
            raise SpecError(field, text, f"{accepted}; which unit is it in?")
        scale = UNITS[dimension].get(unit, _FOLDED[dimension].get(unit.lower()))
        if scale is None or _miswritten(unit, dimension):
            raise SpecError(field, text, f"{accepted}; {_unit_hint(unit, dimension)}")
        value = number * scale
    if not math.isfinite(value) or value <= 0:
        raise SpecError(field, text, f"a quantity greater than zero, for example {_EXAMPLES[dimension]}")
    return value


def _miswritten(unit: str, dimension: Dimension) -> bool:
    pattern = _WRONG_CASE.get(dimension)
    return pattern is not None and pattern.fullmatch(unit) is not None and unit not in UNITS[dimension]


def _money(text: str, field: str, accepted: str) -> float:
    match = _MONEY.fullmatch(text.strip())
    if match is None:
        raise SpecError(field, text, accepted + _comma_hint(text.strip()))
    named = "$" in text or re.search(r"usd|dollar", text, re.I) is not None
    per = (match["per"] or "").lower().removesuffix("s")
    if not named and not per:
        raise SpecError(field, text, f"{accepted}; is it dollars an hour?")
    if per and per not in _PER_HOUR:
        raise SpecError(field, text, f"{accepted}; {per!r} is no time to pay by: h, day, month or year")
    return float(match["number"].replace(",", "").replace("_", "")) / _PER_HOUR[per or "h"]


def _unit_hint(unit: str, dimension: Dimension) -> str:
    if dimension == "seconds" and unit.lower() == "m":
        return "'m' could be ms or min"
    for other, units in UNITS.items():
        if other != dimension and unit in units:
            return f"{unit!r} is a unit of {other}, this field is in {dimension}"
    near = [known for known in UNITS[dimension] if known.lower() == unit.lower()]
    if near:
        return f"{unit!r} could be {' or '.join(near)}: case matters"
    return f"{unit!r} is not a unit of {dimension}"


_COUNT_SCALES = MappingProxyType(
    {
        "": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9,
        "billion": 1e9, "t": 1e12, "trillion": 1e12,
    }
)  # fmt: skip
_TOKEN_SCALES = MappingProxyType({"": 1, "k": 1024, "m": 1024**2})


def parse_count(text: str, field: str, examples: str = "200, 8,192, 10k or 70B") -> float:
    """A number above zero such as "70b", "1.04T", "8,192" or "200": decimal suffixes k, M, B, T in either case."""
    accepted = f"a number greater than zero such as {examples}"
    number, suffix = _split(text, field, accepted)
    scale = _COUNT_SCALES.get(suffix.lower())
    if scale is None or not 0 < number * scale < math.inf:
        raise SpecError(field, text, accepted)
    return _clean(number * scale)


def parse_tokens(text: str, field: str) -> int:
    """A length in tokens such as "8192", "8,192", "8k" or "1M", where k is 1024 and M its square, as contexts are
    named."""
    accepted = "a whole number of tokens such as 8192, 8,192, 8k (8192) or 1M"
    number, suffix = _split(text, field, accepted)
    scale = _TOKEN_SCALES.get(re.sub(r"\s*(tokens?|toks?)$", "", suffix.lower()))
    value = _clean(number * scale) if scale else 0.0
    if not 1 <= value < math.inf or not value.is_integer():
        raise SpecError(field, text, accepted)
    return int(value)


def parse_whole(text: str, field: str, least: int = 0, most: int = 1 << 20) -> int:
    """A whole number in a range, with separators or a decimal suffix: "8", "1,024", "1k"."""
    accepted = f"a whole number from {least:,} to {most:,}"
    number, suffix = _split(text, field, accepted)
    value = number * _COUNT_SCALES.get(suffix.lower(), math.nan)
    if not least <= value <= most or not _clean(value).is_integer():
        raise SpecError(field, text, accepted)
    return int(_clean(value))


def parse_share(text: str, field: str, whole: bool = False) -> float:
    """A share from 0 up to 1: "50%", "0.5", or a bare number from 2 to 100, which can only mean percent.

    Args:
        whole: accept all of it (1, or 100%) and refuse none (0), as an efficiency; else the other way about.
    """
    accepted = "a share above 0 and at most 100%" if whole else "a share from 0% up to, not including, 100%"
    accepted += ", such as 50% or 0.5"
    number, suffix = _split(text, field, accepted)
    if suffix not in ("", "%", "percent", "pct"):
        raise SpecError(field, text, accepted)
    if not suffix and 1 < number < 2:
        raise SpecError(field, text, f"{accepted}; {number:g} could be {number:g}% or {number:g} times")
    value = _clean(number / 100) if suffix or number >= 2 else number
    if not (0 < value <= 1 if whole else 0 <= value < 1):
        raise SpecError(field, text, accepted)
    return value


def parse_percentile(text: str, field: str) -> float:
    """A percentile between 0 and 100: "p95", "95", "95%", "99.9th", "median"; a bare share such as 0.95 is 95."""
    accepted = "a percentile between 0 and 100 such as p50, p95 or 99.9"
    cleaned = text.strip().lower()
    if cleaned in ("median", "mean", "average"):
        if cleaned == "median":
            return 50.0
        raise SpecError(field, text, f"{accepted}; the {cleaned} is no percentile, the nearest is p50")
    number, suffix = _split(cleaned.removeprefix("p"), field, accepted, text)
    bare = not suffix and not cleaned.startswith("p")
    value = _clean(number * 100) if 0 < number < 1 and bare else number
    if suffix not in ("", "%", "th", "st", "nd", "rd", "percentile", "th percentile") or not 0 < value < 100:
        raise SpecError(field, text, accepted)
    return value


def parse_seconds(text: str, field: str) -> float | None:
    """A time limit in seconds with its unit ("5s", "5S", "500 ms", "2 min"), or None for "none"."""
    if text.strip().lower() in ("none", "off", "no", "-"):
        return None
    cleaned = text.strip()
    if re.fullmatch(_NUMBER, cleaned):
        number = cleaned.lstrip("+-")
        raise SpecError(field, text, f"a time with its unit: is it {number}ms or {number}s? For no limit, none")
    return parse_quantity(text, "seconds", field)


_RATE = re.compile(r"(?:requests?|reqs?|r|q|queries)?\s*(?:/|per|p)?\s*(s|sec|second|min|minute|h|hr|hour|d|day)")
_RATE_SECONDS = {"s": 1.0, "m": 60.0, "h": _HOUR, "d": 24 * _HOUR}


def parse_rate(text: str, field: str) -> float:
    """Requests per second: "5/s", "5 rps", "300/min", "1.5M/day"; a bare number is per second."""
    accepted = "requests per second such as 5/s, 5 rps, 300/min or 1.5M/day"
    number, suffix = _split(text, field, accepted)
    lead = re.match(r"(thousand|million|mn|[kKmM](?![a-z]))\s*", suffix)
    scale = _COUNT_SCALES[lead[1].lower()] if lead else 1.0
    unit = suffix[lead.end() :].lower() if lead else suffix.lower()
    match = _RATE.fullmatch(unit) if unit else None
    if unit and match is None:
        raise SpecError(field, text, accepted)
    value = number * scale / (_RATE_SECONDS[match[1][0]] if match else 1.0)
    if not 0 < value < math.inf:
        raise SpecError(field, text, accepted)
    return value


def parse_ratio(text: str, field: str, least: float = 1.0, most: float = 1000.0) -> float:
    """A ratio such as "3", "3x" or "3:1"."""
    accepted = f"a ratio from {least:g} to {most:g} such as 3 or 2.5x"
    number, suffix = _split(text.strip().removesuffix(":1"), field, accepted, text)
    if suffix.lower() not in ("", "x", "×", "times") or not least <= number <= most:
        raise SpecError(field, text, accepted)
    return number


def parse_choice(text: str, field: str, choices: Mapping[str, Value]) -> Value:
    """The choice of this name, in any case; the error lists them all, the near one first."""
    wanted = text.strip().lower()
    if wanted in choices:
        return choices[wanted]
    near = near_names(wanted, choices, 1)
    names = [*near, *(name for name in choices if name not in near)]
    raise SpecError(field, text, ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else names[0])


def parse_list(text: str, field: str, read: Callable[[str, str], Value]) -> tuple[Value, ...]:
    """Items separated by commas, each read by `read(item, field)`; an empty text has none."""
    if not text.strip():
        return ()
    return tuple(read(part.strip(), field) for part in text.split(","))


def _clean(value: float) -> float:
    """The value without the last bits that a decimal scale adds: 1.1k is 1100."""
    return float(f"{value:.12g}")
