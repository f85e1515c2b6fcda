"""Times of every candidate over load, non-decreasing in load and in prompt length by construction.

The correction trees of the time model are step functions: a longer prompt or one more request may lower a
prediction by a few percent. A count of devices that follows such a step falls when demand rises. Sizes are
therefore read off an
envelope: predictions at fixed loads and fixed prompt lengths, the largest so far along both, and straight lines
between them on logarithms. Neither lattice depends on the question, so that two questions share their points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.plan.sizing import Array, CandidateTable, Pick, Times

Evaluate = Callable[[Pick, Array, float], Times]
"""Times of candidates (rows) at loads, for a mean prompt of so many tokens."""

LOAD_STEP = 2.0
"""Ratio of neighbouring loads."""
LENGTHS_BELOW = 3
"""Octaves of prompt length below the question's that its predictions may not fall behind."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Loads of each candidate from one request to the most it holds, and the times there, [candidates, points].

    Rows that need fewer points repeat their last.
    """

    load: Array
    times: Times

    def at(self, load: Array) -> Times:
        """The times of each candidate at one load of its own, [candidates]."""
        logs, at = np.log(self.load), np.log(np.maximum(load, 1.0))
        return Times(*(np.exp(interpolate(logs, np.log(getattr(self.times, n)), at)) for n in Times.__slots__))


def measure_grid(table: CandidateTable, evaluate: Evaluate | None = None, picked: Pick | None = None) -> Grid:
    """The envelope of every candidate of the table (or those `picked`), up to the load that it holds.

    `evaluate` defaults to aggregated replicas.
    """

    def aggregated(rows: Pick, load: Array, length: float) -> Times:
        return table.evaluate(rows, load, length, unlimited=True)

    measure = evaluate or aggregated
    tokens = table.question.workload.input.mean
    chosen = np.arange(len(table.candidates)) if picked is None else picked
    largest = np.array([float(table.candidates[i].largest) for i in chosen])
    steps = np.ceil(np.log(np.maximum(largest, 1.0)) / math.log(LOAD_STEP) - 1e-9).astype(np.intp)
    counts = np.maximum(steps, 1) + 1
    width = int(counts.max())
    lattice: Array = np.asarray(LOAD_STEP ** np.arange(width), dtype=np.float64)
    used = np.arange(width)[None, :] < counts[:, None]
    rows, columns = np.nonzero(used)
    flat = over_lengths(tokens, lambda length: measure(chosen[rows], lattice[columns], length))
    last = (counts - 1)[:, None]
    logs = np.log(np.broadcast_to(lattice, used.shape))
    ends = np.log(np.maximum(largest, 1.0))
    shaped = {}
    for name in Times.__slots__:
        values = np.zeros(used.shape)
        values[rows, columns] = np.log(getattr(flat, name))
        values = np.take_along_axis(values, np.minimum(np.arange(width)[None, :], last), axis=1)
        values = np.maximum.accumulate(values, axis=1)
        # The last point moves along its own line to the largest load, so that memory ends a curve and bends none.
        end = interpolate(logs, values, ends)
        shaped[name] = np.exp(np.where(np.arange(width)[None, :] >= last, end[:, None], values))
    load = np.where(np.arange(width)[None, :] >= last, np.maximum(largest, 1.0)[:, None], np.exp(logs))
    return Grid(load, Times(**shaped))


def prompt_lengths(tokens: float) -> tuple[float, ...]:
    """Powers of two: the two around `tokens`, and those of `LENGTHS_BELOW` octaves below."""
    octave = math.floor(math.log2(max(tokens, 1.0)) + 1e-12)
    return tuple(2.0**n for n in range(max(octave - LENGTHS_BELOW, 0), octave + 2))


def over_lengths(tokens: float, evaluate: Callable[[float], Times]) -> Times:
    """Times at a mean prompt of `tokens`, on the line between the envelope's two lengths around it.

    `evaluate` gives the times at a length.
    """
    lengths = prompt_lengths(tokens)
    reached: dict[str, Array] = {}
    before: dict[str, Array] = {}
    for length in lengths:
        found = evaluate(length)
        before = dict(reached)
        for name in Times.__slots__:
            values = np.log(getattr(found, name))
            reached[name] = np.maximum(reached[name], values) if name in reached else values
    share = min(max(math.log2(max(tokens, 1.0) / lengths[-2]), 0.0), 1.0)
    return Times(**{n: np.exp(before[n] * (1.0 - share) + reached[n] * share) for n in Times.__slots__})


def interpolate(x: Array, y: Array, at: Array) -> Array:
    """Each row of y over x, at one point of its own; x ascending."""
    after = np.clip((x < at[:, None]).sum(axis=1), 1, x.shape[1] - 1)
    rows = np.arange(len(x))
    x0, x1 = x[rows, after - 1], x[rows, after]
    share = np.clip((at - x0) / np.maximum(x1 - x0, 1e-12), 0.0, 1.0)
    values: Array = y[rows, after - 1] * (1 - share) + y[rows, after] * share
    return values
