"""One measured operating point, whoever measured it."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.specs.errors import SpecError


@dataclass(frozen=True, slots=True)
class Observation:
    """Means over a run (or an interval of a log). None where the source does not say."""

    concurrency: float
    """Requests in flight."""
    tpot: float
    """Seconds for each token after the first, a request."""
    ttft: float | None = None
    """Seconds to the first token."""
    input_tokens: float | None = None
    output_tokens: float | None = None
    source: str = ""


def number(report: Mapping[str, object], path: str, where: str) -> float:
    """The positive number at a dotted path of a report. Raises `SpecError` naming the path."""
    found = optional_number(report, path)
    if found is None or not found > 0:
        raise SpecError(f"{where}: {path}", found, "a number above 0")
    return found


def optional_number(report: Mapping[str, object], path: str) -> float | None:
    """The number at a dotted path, None where there is none."""
    value: object = report
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
