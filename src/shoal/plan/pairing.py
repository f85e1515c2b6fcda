"""Which prefill layouts go with which decode layouts in a split, on one accelerator or on two.

Prefill on one part and decode on another are considered where the question names a few accelerators. The engine has
to hand KV over between them (`specs.catalog.hand_over`), both sides store weights and cache alike, and the hand-off
crosses the network of both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.plan.calc import handoff_seconds
from shoal.plan.candidates import Candidate
from shoal.plan.engine_constants import Constants
from shoal.plan.intervals import FURTHER, LEVELS, Familiarity
from shoal.plan.kv import sequence_curve
from shoal.plan.question import Question
from shoal.specs.catalog.hand_over import hand_over_problem, shared_backend
from shoal.specs.hardware import Accelerator, Link

MAX_MIXED = 4
"""Most accelerators of a question for which pairs of two are tried: their number grows with the square."""
_PREFILL_CONSTANTS = ("own_prefill", "split_request", "split_queue", "split_queue_power", "split_prefill")
"""Constants of a split that describe its prefill pool."""
_UNKNOWN_LATENCY = 20e-6
_LINE_SHARE = 0.8
"""Of a link's bandwidth, what moving a cache reaches."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates of one accelerator that store weights and cache alike, as rows of a table."""

    accelerator: Accelerator
    weights: str
    kv_dtype: str
    rows: tuple[int, ...]


def groups_of(candidates: Sequence[Candidate]) -> list[Group]:
    """Return the candidates of a split by accelerator and ways of storing, where a wire can join two pools."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for index, c in enumerate(candidates):
        # A hand-off needs a wire between the pools: a network, or a scale-up domain that holds both.
        if c.accelerator.nic is not None or 2 * c.layout.world <= c.accelerator.domain:
            found.setdefault((c.accelerator.name, c.weights.name, c.kv_dtype), []).append(index)
    return [
        Group(candidates[rows[0]].accelerator, weights, cache, tuple(rows))
        for (_, weights, cache), rows in found.items()
    ]


def pairs_of(question: Question, groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
    """Yield (prefill, decode) groups: each with itself, and with those on other accelerators that it can feed."""
    mixing = len(question.accelerators) <= MAX_MIXED
    for decode in groups:
        for prefill in groups:
            if prefill is decode or (mixing and _mixes(question, prefill, decode)):
                yield prefill, decode


def _mixes(question: Question, prefill: Group, decode: Group) -> bool:
    first, second = prefill.accelerator, decode.accelerator
    if first.name == second.name or (prefill.weights, prefill.kv_dtype) != (decode.weights, decode.kv_dtype):
        return False
    if first.nic is None or second.nic is None:
        return False
    able = question.capability_for(second)
    if able is not question.capability_for(first) or able.reach != "network":
        return False
    return shared_backend(able, question.model, first, second, decode.kv_dtype) is not None


def compatible(question: Question, prefill: Candidate, decode: Candidate) -> bool:
    """Whether the engine hands KV from this prefill worker's layout to that decode worker's."""
    able = question.capability_for(decode.accelerator)
    return hand_over_problem(able, question.model, prefill.layout, decode.layout) is None


def hand_off_seconds(question: Question, prefill: Candidate, decode: Candidate, streamed: bool = True) -> float:
    """Seconds that moving one prompt's cache takes, over all of a worker's ports.

    On one accelerator the prefill worker's ports set the pace. Between two, the slower side's do, over the network.
    """
    moved = sequence_curve(question.model, prefill.kv_dtype).bytes(question.workload.input.mean)
    layers = len(question.model.layers) if streamed else 1
    sides = [prefill] if prefill.accelerator.name == decode.accelerator.name else [prefill, decode]
    return max(_one_side(c, moved, layers) for c in sides)


def hand_off_link(c: Candidate) -> tuple[Link, int]:
    """Return the link that a worker hands over by, and how many ports of it one request's cache crosses."""
    return c.accelerator.nic or c.accelerator.scale_up, c.layout.world // c.layout.dp


def _one_side(c: Candidate, moved: float, layers: int) -> float:
    link, ports = hand_off_link(c)
    return handoff_seconds(moved, link.bandwidth, ports, _LINE_SHARE, link.latency or _UNKNOWN_LATENCY, layers)


def pool_constants(decode: Constants, prefill: Constants) -> Constants:
    """Return the constants of a split whose prefill pool has constants of its own."""
    return replace(decode, **{name: getattr(prefill, name) for name in _PREFILL_CONSTANTS})


def pool_familiarity(decode: Familiarity, prefill: Familiarity, mixed: Mask) -> Familiarity:
    """Return what was measured of a split: of a mixed one, no more than of its less familiar side, and less.

    No measured row mixes accelerators.
    """
    level = np.maximum(_published_level(decode), _published_level(prefill))
    further = np.maximum(np.asarray(decode.further), np.asarray(prefill.further)) * FURTHER
    return replace(
        decode,
        level=np.where(mixed, level, decode.level),
        further=np.where(mixed, further, decode.further),
        trees=np.where(mixed, np.minimum(decode.trees, prefill.trees), decode.trees),
        tpot_trust=np.where(mixed, np.minimum(decode.tpot_trust, prefill.tpot_trust), decode.tpot_trust),
        ttft_trust=np.where(mixed, np.minimum(decode.ttft_trust, prefill.ttft_trust), decode.ttft_trust),
        ttft_factor=np.where(mixed, prefill.ttft_factor, decode.ttft_factor),
    )


def _published_level(known: Familiarity) -> npt.NDArray[np.float64]:
    """The level without a user's own fit, which holds for one machine."""
    level = np.asarray(known.level, dtype=np.float64)
    return np.where(level >= len(LEVELS), float(LEVELS.index("machine")), level)
