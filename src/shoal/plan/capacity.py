"""How much one replica takes within the targets, and how many replicas that makes: all candidates at once.

Targets are crossed on the grid of `load_grid`, whose times never fall with load or prompt length. Capacity
therefore never rises with either, nor with a stricter target, and depends on nothing that is asked of the fleet
as a whole.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.plan.load_grid import Grid, interpolate
from shoal.plan.question import Question
from shoal.plan.sizing import Array

_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one replica takes, [candidates]; 0 where not one request meets the targets."""

    requests: Array
    """In flight; a whole number."""
    usable: Array
    """Of these, what the headroom leaves: at least one."""
    rate: Array
    """Requests per second at `requests`."""
    usable_rate: Array
    """Requests per second at `usable`."""
    tight: npt.NDArray[np.str_]
    """`ttft` or `tpot` where a target is what ends it, else an empty string."""


def capacity(question: Question, found: Grid, end: str = "mean") -> Capacity:
    """The largest load whose times, at this end of their intervals, meet every target."""
    ttft, tpot = found.times.at(end)
    targets = (("ttft", ttft, question.slo.ttft), ("tpot", tpot, question.slo.tpot))
    logs = np.log(found.load)
    reach = logs[:, -1].copy()
    passed = np.ones(len(reach), dtype=bool)
    tight = np.full(len(reach), "", dtype="<U4")
    for name, values, target in targets:
        if target is None:
            continue
        crossing = _crossing(logs, np.log(values), math.log(target))
        passed &= values[:, 0] <= target
        earlier = crossing < reach - 1e-9
        tight[earlier] = name
        reach = np.minimum(reach, crossing)
    requests = np.where(passed, np.floor(np.exp(reach) * (1 + 1e-9)), 0.0)
    usable = usable_requests(question, requests)
    return Capacity(
        requests, usable, rate_at(question, found, requests, end), rate_at(question, found, usable, end), tight
    )


def usable_requests(question: Question, requests: Array) -> Array:
    """Requests in flight that the headroom leaves of a capacity, whatever pool it is: at least one."""
    return np.maximum(1.0, np.floor(requests * (1 - question.headroom) * (1 + 1e-9)))


def rate_at(question: Question, found: Grid, load: Array, end: str = "mean") -> Array:
    """Requests per second of each candidate's replica with up to `load` requests in flight (Little's law).

    Never falls with the load: a replica that does more with fewer in flight is run with fewer.
    """
    ttft, tpot = found.times.at(end)
    rates = found.load / (ttft + (question.workload.output.mean - 1.0) * tpot)
    rising = np.log(np.maximum.accumulate(rates, axis=1))
    rate: Array = np.exp(interpolate(np.log(found.load), rising, np.log(np.maximum(load, 1.0))))
    return rate


def _crossing(x: Array, y: Array, target: float) -> Array:
    """Where each row of y(x), non-decreasing, passes `target`; the last x where it never does."""
    above = y > target
    first = np.where(above.any(axis=1), above.argmax(axis=1), y.shape[1])
    after = np.clip(first, 1, y.shape[1] - 1)
    rows = np.arange(len(y))
    y0, y1 = y[rows, after - 1], y[rows, after]
    x0, x1 = x[rows, after - 1], x[rows, after]
    share = np.clip((target - y0) / np.maximum(y1 - y0, 1e-12), 0.0, 1.0)
    crossing: Array = np.where(first >= y.shape[1], x[:, -1], x0 + share * (x1 - x0))
    return crossing


def replicas_needed(question: Question, found: Capacity) -> Array:
    """Replicas for the peak, spares left out; infinite where not one request meets the targets."""
    needed = np.ones(len(found.usable))
    load = question.workload
    if load.users is not None:
        needed = np.maximum(needed, np.ceil(load.users / found.usable * (1 - 1e-9)))
    if load.rate is not None:
        # Replicas at their usable load serve so many requests per second: the same count as for the users that
        # such a fleet has in flight.
        needed = np.maximum(needed, np.ceil(load.rate / found.usable_rate * (1 - 1e-9)))
    return np.where(found.requests >= 1, needed, np.inf)


def load_of_replica(question: Question, found: Grid, replicas: Array) -> Array:
    """Requests in flight of each replica when `replicas` share the peak evenly."""
    load = question.workload
    shared = np.zeros(len(found.load))
    if load.users is not None:
        shared = load.users / replicas
    if load.rate is not None:
        low, high = np.zeros(len(shared)), np.log(found.load[:, -1])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            short = rate_at(question, found, np.exp(middle)) < load.rate / replicas
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        # Below one request in flight on average, times are those of one alone.
        least = np.minimum(load.rate / replicas / rate_at(question, found, np.ones(len(low))), 1.0)
        shared = np.maximum(shared, np.where(least < 1.0, least, np.exp(high)))
    return np.maximum(shared, 1.0)
