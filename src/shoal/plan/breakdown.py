"""What a design's time is made of: the terms of a decode step and of a prefill, and which of them binds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.plan.candidates import Candidate, hold
from shoal.plan.designs import Design
from shoal.plan.numeric import ARRAY
from shoal.plan.pool_work import PoolWork
from shoal.plan.question import Question
from shoal.plan.sizing import CandidateTable, take
from shoal.plan.step_time import Terms, decode_terms, prefill_terms
from shoal.plan.work import model_work

NAMES = {
    "weights read": "reading dense weights from memory",
    "weights computed": "multiplying with dense weights",
    "experts": "reading and multiplying with experts",
    "attention": "reading the KV cache",
    "scores": "computing attention",
    "communication": "collectives between devices",
    "overhead": "fixed overhead of layers, launches and scheduling",
    "interference": "waiting while other requests are prefilled",
}
"""Terms by name, in words."""


@dataclass(frozen=True, slots=True)
class Share:
    """One term of a time."""

    name: str
    """A key of `NAMES`."""
    seconds: float
    share: float
    """Of the whole, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Terms, largest first. They are scaled to the predicted times, of which the physical model gives the
    proportions and the fit the size."""

    tpot: tuple[Share, ...]
    prefill: tuple[Share, ...]
    prefill_seconds: float
    """One prompt alone."""
    floor: float
    """Seconds that reading the dense weights takes at full bandwidth: no token is quicker."""

    @property
    def binding(self) -> Share:
        return self.tpot[0]


def candidate_of(question: Question, design: Design, first: bool = False) -> Candidate:
    """The candidate that a design was made from; `first`: that of its prefill pool, if it has one."""
    accelerator, layout = design.accelerator, design.layout
    if first and design.prefill is not None:
        accelerator, layout = design.prefill_accelerator or accelerator, design.prefill
    engine = question.engine_for(accelerator)
    found = hold(question, accelerator, engine, design.weights, design.kv_dtype, layout)
    assert isinstance(found, Candidate), "a design's replica holds the model"
    return found


def breakdown(question: Question, design: Design) -> Breakdown:
    """What the times of a design at its load are made of."""
    candidate = candidate_of(question, design)
    table = CandidateTable(
        question, [candidate, candidate_of(question, design, first=True)], model_work(question.model)
    )
    both = (table.parted if design.split else table.whole)[0]
    constants, first_constants = (take(both, np.array([row])) for row in (0, 1))
    load = question.workload
    layout = candidate.layout
    sequences = np.array([max(min(design.load, design.memory_batch) / layout.dp / layout.pp, 1.0)])
    context = np.array([load.mean_context])
    work, first = take(table.work, np.array([0])), table.first(np.array([1]))
    decode = decode_terms(work, constants, sequences, context, ARRAY)
    parts = _named(decode, work, constants.weight_bandwidth)
    tokens = np.array([load.input.mean])
    prompt = prefill_terms(first, first_constants, tokens, 0.0 * tokens, ARRAY)
    step, alone = float(decode.total[0]), float(prompt.total[0])
    if not design.split:
        others = max(float(sequences[0]) * layout.pp - 1.0, 0.0)
        waits = float(np.asarray(constants.interference).ravel()[0]) * alone * others
        parts.append(("interference", waits / (load.output.mean * layout.pp)))
    whole = sum(seconds for _, seconds in parts)
    scale = design.tpot.mean / whole
    prefill_parts = _named(prompt, first, first_constants.weight_bandwidth, "scores")
    floor = float(table.work.dense_bytes[0] / table.work.bandwidth[0])
    assert step > 0
    return Breakdown(_shares(parts, scale), _shares(prefill_parts, 1.0), alone, floor)


def _named(
    terms: Terms, work: PoolWork, bandwidth: object, attention: str = "attention"
) -> list[tuple[str, float]]:
    read = float((work.dense_bytes / (work.bandwidth * bandwidth))[0])
    total = float(terms.weights[0])
    # The two overlap; whichever fills most of the term names it.
    name = "weights read" if read > 0.6 * total else "weights computed"
    named = [(name, total), ("experts", float(np.asarray(terms.experts).ravel()[0]))]
    named.append((attention, float(terms.attention[0])))
    named.append(("communication", float(np.asarray(terms.communication).ravel()[0])))
    named.append(("overhead", float(terms.overhead[0])))
    return named


def _shares(parts: Sequence[tuple[str, float]], scale: float) -> tuple[Share, ...]:
    whole = sum(seconds for _, seconds in parts)
    found = [Share(name, seconds * scale, seconds / whole) for name, seconds in parts if seconds > 0]
    return tuple(sorted(found, key=lambda part: -part.share))
