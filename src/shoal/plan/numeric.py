"""One set of formulas for one case and for many: the few functions that floats and arrays spell differently."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Real = Any
"""A float, or a numpy array with one entry a case: every formula of the time model accepts both."""


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions a formula needs besides arithmetic."""

    exp: Callable[[Real], Real]
    log: Callable[[Real], Real]
    maximum: Callable[[Real, Real], Real]
    minimum: Callable[[Real, Real], Real]
    where: Callable[[Real, Real, Real], Real]


def _pick(condition: Real, yes: Real, no: Real) -> Real:
    return yes if condition else no


def _larger(a: Real, b: Real) -> Real:
    return a if a > b else b


def _smaller(a: Real, b: Real) -> Real:
    return a if a < b else b


SCALAR = Ops(math.exp, math.log, _larger, _smaller, _pick)
ARRAY = Ops(np.exp, np.log, np.maximum, np.minimum, np.where)


def soft_max(a: Real, b: Real) -> Real:
    """A maximum without a corner, (a³ + b³)^(1/3): two terms that nearly balance do not overlap perfectly."""
    return (a * a * a + b * b * b) ** (1.0 / 3.0)
