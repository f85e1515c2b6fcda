"""Lengths of prompts and answers, in tokens: fixed or drawn, written as `128`, `uniform:64:256`, `normal:128:20`,
`lognormal:128:64` (mean and standard deviation of the length itself), optionally with `:min=8:max=512`."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.specs.errors import SpecError
from shoal.specs.traffic import MAX_TOKENS

Shape = Literal["fixed", "uniform", "normal", "lognormal"]
_ACCEPTED = "a whole number such as 128, uniform:64:256, normal:128:20 or lognormal:128:64, with :min=8:max=512"


@dataclass(frozen=True, slots=True)
class LengthDraw:
    """A distribution of lengths; draws are rounded to whole tokens and cut to [minimum, maximum]."""

    shape: Shape
    first: float
    """The length, the least length (uniform) or the mean."""
    second: float = 0.0
    """The greatest length (uniform) or the standard deviation."""
    minimum: int = 1
    maximum: int = MAX_TOKENS

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` lengths, [count]."""
        match self.shape:
            case "fixed":
                raw = np.full(count, self.first)
            case "uniform":
                raw = rng.integers(int(self.first), int(self.second), size=count, endpoint=True).astype(np.float64)
            case "normal":
                raw = rng.normal(self.first, self.second, size=count)
            case "lognormal":
                variance = math.log1p((self.second / self.first) ** 2)
                raw = rng.lognormal(math.log(self.first) - variance / 2, math.sqrt(variance), size=count)
        lengths: NDArray[np.int64] = np.clip(np.rint(raw), self.minimum, self.maximum).astype(np.int64)
        return lengths

    @property
    def mean(self) -> float:
        """The mean before rounding and cutting."""
        return (self.first + self.second) / 2 if self.shape == "uniform" else self.first

    def __str__(self) -> str:
        parts = (
            [f"{self.first:g}"] if self.shape == "fixed" else [self.shape, f"{self.first:g}", f"{self.second:g}"]
        )
        parts += [f"min={self.minimum}"] if self.minimum != 1 else []
        parts += [f"max={self.maximum}"] if self.maximum != MAX_TOKENS else []
        return ":".join(parts)


def parse_lengths(text: str, field: str) -> LengthDraw:
    """A distribution as written on the command line; `SpecError` names the field."""
    numbers: list[float] = []
    bounds = {"min": 1, "max": MAX_TOKENS}
    shape, *rest = text.split(":")
    if shape not in ("uniform", "normal", "lognormal"):
        shape, rest = "fixed", [shape, *rest]
    try:
        for part in rest:
            name, _, value = part.rpartition("=")
            if name in bounds:
                bounds[name] = int(value)
            elif name:
                raise ValueError(name)
            else:
                numbers.append(float(part))
    except ValueError:
        raise SpecError(field, text, _ACCEPTED) from None
    _check(text, field, shape, numbers, bounds["min"], bounds["max"])
    return LengthDraw(shape, numbers[0], numbers[1] if len(numbers) > 1 else 0.0, bounds["min"], bounds["max"])  # type: ignore[arg-type]


def _check(text: str, field: str, shape: str, numbers: list[float], least: int, most: int) -> None:
    wanted = 1 if shape == "fixed" else 2
    if len(numbers) != wanted or not all(math.isfinite(n) and 0 <= n <= MAX_TOKENS for n in numbers):
        raise SpecError(field, text, _ACCEPTED)
    if numbers[0] < 1 or (shape in ("fixed", "uniform") and any(n != int(n) for n in numbers)):
        raise SpecError(field, text, "whole lengths of 1 token or more")
    if shape == "uniform" and numbers[1] < numbers[0]:
        raise SpecError(field, text, "uniform:LEAST:GREATEST with LEAST ≤ GREATEST")
    if not 1 <= least <= most:
        raise SpecError(field, text, "1 ≤ min ≤ max")
