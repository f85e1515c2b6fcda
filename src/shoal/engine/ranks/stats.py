"""What is known of the steps of each rank."""

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
    last: float

    @property
    def busy(self) -> float:
        """Mean seconds of own work a step: the straggler is the rank that has most."""
        return (self.seconds - self.waited) / self.steps if self.steps else 0.0
