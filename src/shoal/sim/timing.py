"""How long a step takes, in integer nanoseconds.

A step's work is counted as the engine counts it: prompt tokens with what lies before them, decoding sequences with
what they have cached. Cached tokens are rounded to a bucket, so that decode steps in a row take equal times and
their sum has a closed form: simulated one by one or all at once, they end at the same nanosecond. Buckets are 1/64
to 1/128 of the cached tokens wide (256 at least), of which the middle is taken: the error is below 0.8 % of what
reading the cache takes.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from shoal.sim.events import NANOSECONDS

_LEAST_WIDTH = 256


@dataclass(slots=True)
class StepWork:
    """What one step computes."""

    chunks: int = 0
    """Sequences whose prompt it computes, or a part of it."""
    tokens: int = 0
    """Prompt tokens in all chunks."""
    cached: int = 0
    """Σ over chunks of chunk · tokens cached before it."""
    pairs: int = 0
    """Σ over chunks of chunk²."""
    decode: int = 0
    """Sequences that compute one token."""
    context: int = 0
    """Tokens in the cache of those sequences, after the step."""


class StepSeconds(Protocol):
    """A model of step times, in seconds."""

    def seconds(self, work: StepWork) -> float: ...


@dataclass(frozen=True, slots=True)
class LinearSeconds:
    """A step time that is linear in the work, as fits to logs give it. All in seconds."""

    step: float
    """Of every step."""
    prompt_token: float
    sequence: float
    """Per decoding sequence."""
    cached_token: float
    """Per token in the cache of a decoding sequence."""
    pair: float = 0.0
    """Per pair of a prompt token and a token before it."""

    def seconds(self, work: StepWork) -> float:
        """See `StepSeconds`."""
        return (
            self.step
            + self.prompt_token * work.tokens
            + self.sequence * work.decode
            + self.cached_token * work.context
            + self.pair * (work.cached + work.pairs / 2)
        )


@dataclass(frozen=True, slots=True)
class RooflineSeconds:
    """A step time that is bounded by reading the weights or by arithmetic, whichever is longer. All in seconds.

    Between the two it is smooth: the fourth root of the sum of fourth powers. From one load to another this misses
    by less than a linear form does, whose price per token is paid where the weights hide it.
    """

    step: float
    """Of every step: launches, sampling, the host."""
    weights: float
    """Reading the weights."""
    token: float
    """Arithmetic per token, of prompts and of decoding sequences."""
    sequence: float
    """Per decoding sequence, beside its token."""
    cached_token: float
    """Per token in the cache of a decoding sequence."""
    pair: float
    """Per pair of a prompt token and a token before it."""

    def seconds(self, work: StepWork) -> float:
        """See `StepSeconds`."""
        rows = self.token * (work.tokens + work.decode)
        return (
            self.step
            + math.sqrt(math.sqrt(self.weights**4 + rows**4))
            + self.sequence * work.decode
            + self.cached_token * work.context
            + self.pair * (work.cached + work.pairs / 2)
        )


class UncertainSeconds(StepSeconds, Protocol):
    """A model of step times that knows how far off it may be."""

    @property
    def spread(self) -> float:
        """Upper end of the 90 % interval of a step over its mean, and its mean over the lower end."""
        ...

    def scaled(self, factor: float) -> "UncertainSeconds":
        """All steps `factor` times as long."""
        ...


@dataclass(frozen=True, slots=True)
class FittedSeconds:
    """Step times fitted to measured runs."""

    step: RooflineSeconds
    spread: float
    factor: float = 1.0

    def seconds(self, work: StepWork) -> float:
        """See `StepSeconds`."""
        return self.step.seconds(work) * self.factor

    def scaled(self, factor: float) -> "FittedSeconds":
        """See `UncertainSeconds`."""
        return FittedSeconds(self.step, self.spread, self.factor * factor)


def bucket(context: int) -> tuple[int, int]:
    """Return the first number of cached tokens of a bucket, and how many it spans."""
    width = max(_LEAST_WIDTH, 1 << max(0, context.bit_length() - 7))
    return context - context % width, width


class StepClock:
    """Step times of one replica in nanoseconds, remembered where they recur; `factor` slows it down."""

    def __init__(self, model: StepSeconds) -> None:
        self._model = model
        self.factor = 1.0
        self._decode: dict[tuple[int, int], int] = {}

    def step(self, work: StepWork) -> int:
        """Nanoseconds of a step."""
        if not work.chunks:
            start, width = bucket(work.context)
            return self._slowed(self._decoding(work.decode, start, width))
        if work.decode:
            start, width = bucket(work.context)
            work.context = start + width // 2
        return self._slowed(round(self._model.seconds(work) * NANOSECONDS))

    def _slowed(self, duration: int) -> int:
        return max(1, duration if self.factor == 1.0 else round(duration * self.factor))

    def _decoding(self, sequences: int, start: int, width: int) -> int:
        key = (sequences, start)
        known = self._decode.get(key)
        if known is None:
            work = StepWork(decode=sequences, context=start + width // 2)
            known = self._decode[key] = round(self._model.seconds(work) * NANOSECONDS)
        return known

    def run(self, start: int, steps: int, sequences: int, context: int) -> "Run":
        """The times of `steps` decode steps in a row; `context` is the first one's."""
        firsts, times, durations = [0], [start], []
        done, time = 0, start
        while done < steps:
            low, width = bucket(context)
            duration = self._slowed(self._decoding(sequences, low, width))
            # As many as begin within this bucket.
            count = min(steps - done, (low + width - 1 - context) // sequences + 1)
            durations.append(duration)
            done += count
            time += count * duration
            context += count * sequences
            firsts.append(done)
            times.append(time)
        return Run(steps, firsts, times, durations)


class Run:
    """Decode steps in a row, in pieces of equal step times. Steps are numbered from 1 by when they end."""

    __slots__ = ("_durations", "_firsts", "_times", "steps")

    def __init__(self, steps: int, firsts: list[int], times: list[int], durations: list[int]) -> None:
        self.steps = steps
        self._firsts = firsts
        self._times = times
        self._durations = durations

    def end(self, step: int) -> int:
        """When step `step` ends; 0: when the first begins."""
        if step >= self.steps:
            return self._times[-1]
        piece = bisect_right(self._firsts, step) - 1
        return self._times[piece] + (step - self._firsts[piece]) * self._durations[piece]

    def under_way(self, time: int) -> int:
        """The number of the step that is under way at `time`: the first that ends after it."""
        piece = bisect_right(self._times, time) - 1
        if piece >= len(self._durations):
            return self.steps + 1
        return self._firsts[piece] + (time - self._times[piece]) // self._durations[piece] + 1

    def pieces(self, steps: int) -> list[tuple[int, int]]:
        """(steps, nanoseconds each) of the first `steps` steps."""
        found, firsts = [], self._firsts
        for piece, duration in enumerate(self._durations):
            count = min(steps, firsts[piece + 1]) - firsts[piece]
            if count <= 0:
                break
            found.append((count, duration))
        return found
