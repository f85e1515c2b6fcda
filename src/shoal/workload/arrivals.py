"""When requests are due in an open loop: seconds after the start, drawn beforehand from a seed."""

from typing import Literal, get_args

import numpy as np

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive
from shoal.workload.stats import Floats

Process = Literal["poisson", "gamma", "constant", "burst"]
"""poisson: exponential gaps · gamma: gaps of a given coefficient of variation · constant: equal gaps ·
burst: all at once."""


def arrival_times(process: str, rate: float, count: int, rng: np.random.Generator, cv: float = 1.0) -> Floats:
    """Return `count` arrival times in seconds, ascending from 0, [count].

    Random gaps are scaled so that their mean is 1 / `rate` exactly: the process is conditioned on its number of
    arrivals. A hundred exponential gaps would miss the rate by 10 % (one standard deviation).

    Args:
        rate: arrivals per second (ignored by `burst`).
        cv: standard deviation over mean of the gaps, for `gamma`: 1 is Poisson, more is burstier.
    """
    if process not in get_args(Process):
        raise SpecError("arrival", process, f"one of {', '.join(get_args(Process))}")
    if process == "burst" or count <= 1:
        return np.zeros(count)
    positive("rate", rate, 1e6)
    gaps = count - 1
    match process:
        case "poisson":
            drawn = rng.exponential(1 / rate, size=gaps)
        case "gamma":
            positive("cv", cv, 100)
            drawn = rng.gamma(1 / cv**2, cv**2 / rate, size=gaps)
        case _:
            drawn = np.full(gaps, 1 / rate)
    times = np.cumsum(drawn)
    return np.concatenate([[0.0], times * (gaps / rate / max(float(times[-1]), 1e-300))])


def scaled_times(timestamps: Floats, speed: float = 1.0, rate: float | None = None) -> Floats:
    """A trace's own arrival times, from 0: `speed` times as fast, or so that their mean rate is `rate`."""
    times = np.asarray(timestamps, dtype=np.float64) - timestamps[0]
    if rate is None:
        faster: Floats = times / positive("speed", speed, 1e6)
        return faster
    positive("rate", rate, 1e6)
    span = float(times[-1])
    if span == 0:
        raise SpecError("rate", rate, "no rate for a trace whose requests all come at once")
    scaled: Floats = times * ((len(times) - 1) / span / rate)
    return scaled
