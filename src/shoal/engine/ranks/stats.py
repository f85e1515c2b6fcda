"""What is known of the steps of each rank."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankStats:
    """One rank's steps so far; seconds."""

    rank: int
    name: str
    steps: int
    seconds: float
    """From command to end, summed."""
    waited: float
    """Of these, spent waiting for other ranks."""


def waiting_share(ranks: Sequence[RankStats]) -> float | None:
    """Return the share of all ranks' step time spent waiting for each other, 0 to 1; None before any step."""
    seconds = sum(rank.seconds for rank in ranks)
    return min(1.0, sum(rank.waited for rank in ranks) / seconds) if seconds else None
