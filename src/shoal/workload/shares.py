"""Which of several names a session gets, by shares: models as `llama=3,qwen=1`, priorities as `0=0.9,-1=0.1`."""

from dataclasses import dataclass

import numpy as np

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive


@dataclass(frozen=True, slots=True)
class Shares:
    """Names and how often each is drawn, relative to the others."""

    names: tuple[str, ...]
    weights: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Draw `count` names."""
        total = sum(self.weights)
        drawn = rng.choice(len(self.names), size=count, p=[w / total for w in self.weights])
        return [self.names[i] for i in drawn.tolist()]

    def __str__(self) -> str:
        return ",".join(f"{n}={w:g}" for n, w in zip(self.names, self.weights, strict=True))


def parse_shares(text: str, field: str) -> Shares:
    """Shares as written on the command line; `SpecError` names the field."""
    accepted = "names with their shares, such as a=3,b=1"
    names, weights = [], []
    for part in text.split(","):
        name, equals, weight = part.rpartition("=")
        name = name if equals else weight
        try:
            share = float(weight) if equals else 1.0
        except ValueError:
            raise SpecError(field, text, accepted) from None
        if not name.strip():
            raise SpecError(field, text, accepted)
        names.append(name.strip())
        weights.append(positive(field, share, 1e9))
    if len(set(names)) < len(names):
        raise SpecError(field, text, "every name once")
    return Shares(tuple(names), tuple(weights))


def parse_priorities(text: str, field: str = "priorities") -> Shares:
    """Shares of priorities: whole numbers, of which lower ones are served first."""
    shares = parse_shares(text, field)
    try:
        numbers = [int(name) for name in shares.names]
    except ValueError:
        raise SpecError(field, text, "whole numbers with their shares, such as 0=0.9,-1=0.1") from None
    if any(not -1000 <= n <= 1000 for n in numbers):
        raise SpecError(field, text, "priorities from -1000 to 1000")
    return Shares(tuple(str(n) for n in numbers), shares.weights)
