"""What compiled code needs to call a group's all-reduce itself, without coming back to Python in between."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankSums:
    """How a rank's products are added up with those of the other ranks that hold the same layers."""

    all_reduce: int
    """Address of a C function (group, data, bytes, kind) -> -1 or the index of the rank that did not come."""
    group: int
    """Address of its first argument."""
    done: Callable[[int, int, int], None]
    """Told (calls, bytes each, index of the rank that did not come or -1) after a step; raises for the latter."""
