"""Step times as multiples of the planner's, parameter by parameter: what a fit finds and constants files keep."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.sim.timing import RooflineSeconds, StepSeconds, StepWork

PARAMETERS = ("step", "weights", "token", "sequence", "cached_token", "pair", "front")
_FRONT = 5e-3
"""Seconds between a request's arrival and its reaching the scheduler, before anything was fitted."""
_OTHER_MODEL = 0.4
"""Logarithm by which a fit to one model may miss another on one device. Seen on RTX PRO 6000: 0.12 to 0.17 from
8B on one card to 32B on two; the other way 0.30 for time per token, and 0.58 for TTFT, which this doesn't cover."""


def step_of(prior: StepSeconds, factors: Sequence[float]) -> RooflineSeconds:
    """Step times that are so many times what the planner says, parameter by parameter."""
    values = np.exp(start_of(prior)) * np.asarray(factors)
    return RooflineSeconds(*values[:6].tolist())


def front_of(factors: Sequence[float]) -> float:
    """Seconds between a request's arrival and its reaching the scheduler."""
    return _FRONT * factors[6]


def widened(spread: float) -> float:
    """Return the interval of a fit for a model that it has not seen: upper end over mean."""
    return math.exp(math.hypot(math.log(spread), _OTHER_MODEL))


def start_of(prior: StepSeconds) -> npt.NDArray[np.float64]:
    """Logarithms of parameters that agree with the planner's step times where these are simple."""

    def seconds(**work: int) -> float:
        return prior.seconds(StepWork(**work))

    one, several = seconds(decode=1, context=1), seconds(decode=64, context=64)
    prompt = seconds(chunks=1, tokens=2048, pairs=1)
    cached = (seconds(decode=64, context=128_000) - seconds(decode=64, context=64_000)) / 64_000
    pair = (seconds(chunks=1, tokens=2048, cached=2048 * 4000, pairs=1) - prompt) / (2048 * 4000)
    sequence = 0.3 * (several - one) / 64
    parameters = (0.2 * one, 0.8 * one, prompt / 2048, sequence, cached, pair, _FRONT)
    return np.log(np.maximum(parameters, (1e-6, 1e-6, 1e-8, 1e-6, 1e-10, 1e-13, 1e-6)))
