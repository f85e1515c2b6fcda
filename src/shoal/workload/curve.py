"""A rate that changes over the day, and arrivals at it: a nonhomogeneous Poisson process."""

from dataclasses import dataclass

import numpy as np

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive
from shoal.workload.stats import Floats

HOURS = 24.0
_ACCEPTED = "hours of the day with relative rates, such as 0=0.2,9=1,14=1.3,22=0.4"


@dataclass(frozen=True, slots=True)
class DayCurve:
    """The rate over the hours of a day relative to the day's mean: straight lines between points, day after day."""

    hours: tuple[float, ...]
    """Ascending, 0 or more and below 24."""
    factors: tuple[float, ...]
    """Relative rates at these hours, 0 or more; their scale doesn't matter."""

    def at(self, hours: Floats) -> Floats:
        """The rate at these hours over the mean rate of a day."""
        x, y = np.asarray(self.hours), np.asarray(self.factors)
        # The last point of the day before and the first of the day after: the line goes on over midnight.
        x = np.concatenate([[x[-1] - HOURS], x, [x[0] + HOURS]])
        y = np.concatenate([[y[-1]], y, [y[0]]])
        found: Floats = np.interp(np.mod(hours, HOURS), x, y) / self._mean
        return found

    @property
    def peak(self) -> float:
        """The highest rate over the mean rate."""
        return max(self.factors) / self._mean

    @property
    def _mean(self) -> float:
        x, y = np.asarray([*self.hours, self.hours[0] + HOURS]), np.asarray([*self.factors, self.factors[0]])
        return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / HOURS)

    def __str__(self) -> str:
        return ",".join(f"{h:g}={f:g}" for h, f in zip(self.hours, self.factors, strict=True))


def parse_curve(text: str, field: str = "curve") -> DayCurve:
    """A curve as written on the command line; `SpecError` names the field."""
    points: list[tuple[float, float]] = []
    for part in text.split(","):
        hour, _, factor = part.partition("=")
        try:
            points.append((float(hour), positive(field, float(factor), 1e6, zero=True)))
        except ValueError:
            raise SpecError(field, text, _ACCEPTED) from None
    points.sort()
    hours = [h for h, _ in points]
    if any(not 0 <= h < HOURS for h in hours) or len(set(hours)) < len(hours):
        raise SpecError(field, text, "every hour once, from 0 to below 24")
    if all(f == 0 for _, f in points):
        raise SpecError(field, text, "a rate above 0 at some hour")
    return DayCurve(tuple(hours), tuple(f for _, f in points))


@dataclass(frozen=True, slots=True)
class Day:
    """A curve as it is run."""

    curve: DayCurve
    start: float = 0.0
    """The hour of the day at which the run begins."""
    seconds: float = 86_400.0
    """How long a day lasts in the run: less than 86,400 shows a day in less time, at the same rates."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < HOURS:
            raise SpecError("curve_start", self.start, "an hour from 0 to below 24")
        positive("day_seconds", self.seconds, 1e9)


def day_times(
    day: Day, rate: float, rng: np.random.Generator, count: int | None = None, seconds: float | None = None
) -> Floats:
    """Return arrival times in seconds, ascending: the first `count`, or all before `seconds`, or what ends first.

    Thinning (Lewis & Shedler 1979): arrivals at the peak rate, of which each is kept with the share that the rate
    at its time is of the peak.

    Args:
        rate: mean arrivals per second over a whole day.
    """
    positive("rate", rate, 1e6)
    if count is None and seconds is None:
        raise ValueError("neither a count nor a duration")
    highest = rate * day.curve.peak
    kept: list[Floats] = []
    now, found = 0.0, 0
    while (count is None or found < count) and (seconds is None or now < seconds):
        times = now + np.cumsum(rng.exponential(1 / highest, size=4096))
        now = float(times[-1])
        share = day.curve.at(day.start + times * (HOURS / day.seconds)) / day.curve.peak
        accepted = times[rng.random(len(times)) < share]
        kept.append(accepted)
        found += len(accepted)
    arrivals = np.concatenate(kept)[:count]
    return arrivals if seconds is None else arrivals[arrivals < seconds]
