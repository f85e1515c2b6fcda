"""Randomness as a value: a seeded stream that a policy owns, so that a run can be repeated.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

_MASK = (1 << 64) - 1


class Draws:
    """A stream of pseudo-random numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def uniform(self) -> float:
        """A number in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self.uniform() * n)
