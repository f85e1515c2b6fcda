"""From options to loads: what the commands offer, checked."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive
from shoal.workload.curve import Day, day_times, parse_curve
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Load, Shape, at_times, made_up, over_the_day
from shoal.workload.run import RunOptions
from shoal.workload.shares import parse_priorities, parse_shares
from shoal.workload.traces import Cut, trace_load

DEFAULT_REQUESTS = 100
DEFAULT_CONCURRENCY = 8
_SPARE = 4
"""A closed loop needs requests beyond the measured ones to keep its users busy to the end: so many per user."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """A load as a user describes it."""

    input: str = "128"
    output: str = "128"
    turns: str = "1"
    think: float = 0.0
    shared: int = 0
    groups: int = 1
    trace: Path | None = None
    speed: float = 1.0
    trace_start: float = 0.0
    length_scale: float = 1.0
    max_input: int | None = None
    max_output: int | None = None
    trace_models: bool = False
    models: str | None = None
    priorities: str | None = None
    curve: str | None = None
    """The rate over the hours of a day, of an open loop."""
    curve_start: float = 0.0
    day_seconds: float = 86_400.0
    requests: int | None = None
    """Sessions (open loop) or requests (closed loop) that are measured."""
    duration: float | None = None
    """Seconds of arrivals, instead of `requests`."""
    arrival: str = "poisson"
    cv: float = 1.0
    rate: float | None = None
    """Sessions per second of an open loop."""
    concurrency: int | None = None
    """Requests in flight of a closed loop."""
    warmup: int | None = None
    deadline: float = 600.0
    seed: int = 0
    salt: str = ""

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise SpecError("concurrency", self.concurrency, "either --rate (open loop) or --concurrency (closed)")
        for name in ("requests", "duration", "max_input", "max_output", "concurrency", "groups", "deadline"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value, 1e8)
        for name in ("shared", "think", "trace_start", "warmup"):
            positive(name, getattr(self, name) or 0, 1e8, zero=True)

    @property
    def open_loop(self) -> bool:
        if self.concurrency is not None:
            return False
        return self.rate is not None or self.trace is not None or self.arrival == "burst"

    def shape(self) -> Shape:
        """The shape of made-up sessions; `SpecError` names the option that can't be read."""
        return Shape(
            parse_lengths(self.input, "input"),
            parse_lengths(self.output, "output"),
            parse_lengths(self.turns, "turns"),
            self.think,
            self.shared,
            self.groups,
            None if self.models is None else parse_shares(self.models, "models"),
            None if self.priorities is None else parse_priorities(self.priorities),
        )

    def day(self) -> Day | None:
        """The day of an open loop; None: its rate does not change."""
        if self.curve is None:
            return None
        if self.trace is not None or self.arrival != "poisson":
            raise SpecError("curve", self.curve, "made-up requests with --arrival poisson")
        return Day(parse_curve(self.curve), self.curve_start, self.day_seconds)


def workload(options: WorkloadOptions, rate: float | None = None, name: str = "") -> tuple[Load, RunOptions]:
    """The load and how to run it.

    Args:
        rate: instead of the options' own.
        name: keeps the prompts and arrival times of several runs of one seed apart.
    """
    rate = options.rate if rate is None else rate
    run = options_of(options, rate)
    warmup, concurrency = run.warmup, run.concurrency
    count = _sessions(options, rate, warmup, concurrency)
    if options.trace is not None:
        cut = Cut(
            count,
            options.trace_start,
            options.length_scale,
            options.max_input,
            options.max_output,
            options.trace_models,
        )
        return trace_load(options.trace, cut, options.speed, rate), run
    if (day := options.day()) is not None:
        return _over_the_day(options, day, rate, warmup, name), run
    load = made_up(options.shape(), count, options.seed, name)
    if concurrency is None:
        load = at_times(load, options.arrival, rate or math.inf, options.seed, options.cv, name)
    return load, run


def options_of(options: WorkloadOptions, rate: float | None = None) -> RunOptions:
    """How the load of these options is run.

    Args:
        rate: of an open loop, instead of the options' own.
    """
    open_loop = options.open_loop or rate is not None
    concurrency = None if open_loop else options.concurrency or DEFAULT_CONCURRENCY
    default_warmup = 0 if concurrency is None else concurrency
    return RunOptions(
        requests=None if open_loop else _closed_requests(options),
        seconds=None if open_loop else options.duration,
        concurrency=concurrency,
        warmup=default_warmup if options.warmup is None else options.warmup,
        deadline=options.deadline,
        seed=options.seed,
        salt=options.salt,
    )


def _over_the_day(options: WorkloadOptions, day: Day, rate: float | None, warmup: int, name: str) -> Load:
    if rate is None:
        raise SpecError("curve", options.curve, "a mean rate beside it: --rate")
    rng = np.random.default_rng([options.seed, 1, *name.encode()])
    count = None if options.requests is None else options.requests + warmup
    if count is None and options.duration is None:
        count = DEFAULT_REQUESTS + warmup
    times = day_times(day, rate, rng, count, options.duration)
    if not len(times):
        raise SpecError("duration", options.duration, "a time in which requests arrive at this rate")
    return over_the_day(made_up(options.shape(), len(times), options.seed, name), day, rate, times)


def _closed_requests(options: WorkloadOptions) -> int | None:
    return options.requests or (None if options.duration else DEFAULT_REQUESTS)


def _sessions(options: WorkloadOptions, rate: float | None, warmup: int, concurrency: int | None) -> int:
    if concurrency is not None:
        measured = options.requests or (DEFAULT_REQUESTS if options.duration is None else 64 * concurrency)
        return measured + warmup + _SPARE * concurrency
    if options.duration is not None and rate is not None:
        at_least = options.requests or 1
        return max(at_least, math.ceil(rate * options.duration)) + warmup
    return (options.requests or DEFAULT_REQUESTS) + warmup
