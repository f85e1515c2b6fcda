"""Whether predicted hits come true: the index is checked against what engines report, and believed accordingly.

Hash seeds, block sizes or chat templates that differ make an index promise what no engine has. Then routing by it
is worse than none, silently. Here it's neither.
"""

from dataclasses import dataclass

_WEIGHT = 0.1
"""Of one observation in the running mean: about the last ten requests count."""
DEGRADED = 0.5


@dataclass(slots=True)
class Trust:
    """One replica's. `value` scales its predicted hits in every scorer."""

    value: float = 1.0

    def observe(self, predicted: int, actual: int) -> bool:
        """A request ended: tokens promised, and tokens that the engine says it reused. True if trust was just lost.

        Without a promise nothing is learned: a surprise hit doesn't make promises better.
        """
        if predicted <= 0:
            return False
        before = self.value
        self.value += _WEIGHT * (min(1.0, actual / predicted) - self.value)
        return before >= DEGRADED > self.value
