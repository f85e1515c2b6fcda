"""Prefill and decode in pools of their own: which layouts for each, and how many workers.

A decode pool answers for TPOT and a prefill pool for TTFT, so each is chosen by what it does per device. The best
of both are evaluated together, hand-off included, as `_Option`s: so many users for each decoding worker, and so
much of a prefill worker for each user. An option knows nothing of the size of the fleet; the users then say how
many workers of either kind, so that more users never take fewer.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.plan.candidates import Candidate, refusal, told_sequences
from shoal.plan.capacity import capacity, usable_requests
from shoal.plan.cost import bill, demand
from shoal.plan.designs import Design
from shoal.plan.load_grid import measure_grid, over_lengths
from shoal.plan.numeric import ARRAY
from shoal.plan.pairing import compatible, groups_of, hand_off_seconds, pairs_of
from shoal.plan.question import MAX_DEVICES, Question
from shoal.plan.sizing import Array, CandidateTable, Pick, Times
from shoal.plan.step_time import Estimate, prefill_terms

PREFILL_LAYOUTS = 2
"""Layouts of the prefill pool that are tried, of each accelerator and way of storing."""
TPOT_LADDER = (0.01, 0.02, 0.04, 0.08, math.inf)
PER_TARGET = 2
"""The layouts with most users per device at each of these targets (seconds), up to the first beyond the
question's, are tried for decoding: what a stricter question tries, a laxer one tries too."""
LOADS = tuple(math.floor(2.0 ** (step / 2)) for step in range(40))
"""Users of one decoding worker that are tried, beside its capacity: fixed, for the same reason."""
LOADS_BELOW = 8.0
"""Loads less than its capacity by more than this factor are left out, but for a single request."""
PREFILL_MARGINS = (1.0, 1.4, 2.0)
"""Prefill workers over what the mean rate needs: queues ask for more."""
_MANY = 1e6


@dataclass(frozen=True, slots=True)
class _Option:
    decode: int
    prefill: int
    load: float
    """Users of one decoding worker."""
    usable: float
    """Of these, what the headroom leaves."""
    each: float
    """Prefill workers per user, headroom left out."""


@dataclass(frozen=True, slots=True)
class _Sized:
    """An option with the workers that the peak takes."""

    option: _Option
    row: int
    users: float
    workers: int
    prefill_workers: int
    devices: int
    price: float
    """Dollars per hour; devices where there is no price."""


def split_designs(table: CandidateTable) -> list[Design]:
    """Split designs that meet the targets, the fewest devices for each pair of layouts."""
    options = list(_options(table))
    if not options:
        return []
    question = table.question
    times = _canonical_times(table, options)
    slo, end = question.slo, "high" if question.assurance == "high" else "mean"
    ttft, tpot = times.at(end)
    good = np.ones(len(options), dtype=bool)
    if slo.ttft is not None:
        good &= ttft <= slo.ttft
    if slo.tpot is not None:
        good &= tpot <= slo.tpot
    limit = question.max_devices or MAX_DEVICES
    best: dict[tuple[int, int], _Sized] = {}
    for row in np.flatnonzero(good):
        sized = _size(table, options[row], times, int(row))
        if sized.devices > limit:
            continue
        key = (sized.option.decode, sized.option.prefill)
        if key not in best or _preference(sized) < _preference(best[key]):
            best[key] = sized
    made = [_design(table, sized, times) for sized in best.values()]
    return [design for design in made if _reaches(question, design)]


def _reaches(question: Question, design: Design) -> bool:
    """The engine can hand KV from the one pool to the other: over a network, or because both are on one server."""
    able, accelerator = question.capability_for(design.accelerator), design.accelerator
    return able.reach == "network" or design.devices <= accelerator.devices_per_node


def _preference(sized: _Sized) -> tuple[float, ...]:
    """Cheapest; of the options that the same devices serve, the least loaded is what they will see."""
    return sized.price, sized.devices, sized.option.load, -sized.option.each


def _options(table: CandidateTable) -> Iterator[_Option]:
    """Loads and prefill shares for the most promising layouts of every accelerator, weights and cache."""
    question = table.question
    rates, output = _prefill_rates(table), question.workload.output.mean
    pairs = _layout_pairs(table, rates)
    if not pairs:
        return
    picked = np.unique(np.array([decode for decode, _ in pairs], dtype=np.intp))

    def decode_only(rows: Pick, load: Array, length: float) -> Times:
        ones = np.ones(len(rows))
        return table.evaluate_split(rows, rows, load, ones, _MANY * ones, length)

    measured = measure_grid(table, decode_only, picked)
    end = "high" if question.assurance == "high" else "mean"
    held = capacity(replace(question, slo=replace(question.slo, ttft=None)), measured, end).requests
    place = {int(index): at for at, index in enumerate(picked)}
    tried = [_loads_of(float(most)) for most in held]
    width = max(len(loads) for loads in tried)
    if not width:
        return
    padded = np.array([[*loads, *[1.0] * (width - len(loads))] for loads in tried])
    token = np.stack([measured.at(padded[:, n]).at(end)[1] for n in range(width)], axis=1)
    usable = usable_requests(question, padded)
    for i, j in pairs:
        at = place[i]
        for n, load in enumerate(tried[at]):
            each = 1.0 / (output * float(token[at, n]) * float(rates[j]))
            for margin in PREFILL_MARGINS:
                yield _Option(i, j, load, float(usable[at, n]), margin * each)


def _loads_of(most: float) -> list[float]:
    """Loads to try of a worker that takes `most` requests; none where it takes none."""
    if most < 1:
        return []
    return sorted({1.0, most, *(float(load) for load in LOADS if most / LOADS_BELOW <= load < most)})


def _layout_pairs(table: CandidateTable, rates: Array) -> list[tuple[int, int]]:
    """(decode, prefill) candidates to combine: for each decode layout worth trying, the best prefill layouts whose
    KV it can be handed."""
    groups = groups_of(table.candidates)
    decoders = {id(group): _decode_layouts(table, np.array(group.rows)) for group in groups}
    prefills = {id(group): _prefill_layouts(table, np.array(group.rows), rates) for group in groups}
    found: list[tuple[int, int]] = []
    for prefill, decode in pairs_of(table.question, groups):
        for i in decoders[id(decode)]:
            fed = (j for j in prefills[id(prefill)] if compatible(
                table.question, table.candidates[j], table.candidates[i]))  # fmt: skip
            found += [(i, j) for j in itertools.islice(fed, PREFILL_LAYOUTS)]
    return found


def _prefill_layouts(table: CandidateTable, rows: Pick, rates: Array) -> list[int]:
    """The layouts of a prefill worker, those with most prompts per second and device first."""
    rows = rows[_has_role(table, rows, "prefill")]
    return [int(row) for row in rows[np.argsort(-(rates / table.world)[rows], kind="stable")]]


def _decode_layouts(table: CandidateTable, rows: Pick) -> list[int]:
    """The layouts with most requests per device within TPOT, by physics alone, which ranks layouts of one
    accelerator well and costs little."""
    question = table.question
    decoders = rows[_has_role(table, rows, "decode")]
    if not len(decoders):
        return []
    loads = np.minimum(2.0 ** np.arange(18)[None, :], table.largest[decoders][:, None])
    step = table.decode_seconds(np.repeat(decoders, loads.shape[1]), loads.ravel()).reshape(loads.shape)
    target = question.slo.tpot or math.inf
    decode: list[int] = []
    for rung, limit in enumerate(TPOT_LADDER):
        if rung and TPOT_LADDER[rung - 1] >= target:
            break
        most = np.where(step <= limit, loads, 0.0).max(axis=1) / table.world[decoders]
        decode += [int(decoders[n]) for n in np.argsort(-most, kind="stable")[:PER_TARGET] if most[n] > 0]
    return list(dict.fromkeys(decode))


def _canonical_times(table: CandidateTable, options: list[_Option]) -> Times:
    """Times of each option in a fleet just large enough for one worker of either kind."""
    decode = np.array([o.decode for o in options])
    prefill = np.array([o.prefill for o in options])
    load = np.array([o.load for o in options])
    first = load * np.array([o.each for o in options])
    scale = np.maximum(1.0, 1.0 / first)
    tokens = table.question.workload.input.mean

    def evaluate(length: float) -> Times:
        return table.evaluate_split(decode, prefill, load * scale, scale, first * scale, length)

    return _with_hand_off(table, decode, prefill, over_lengths(tokens, evaluate))


def _size(table: CandidateTable, option: _Option, times: Times, row: int) -> _Sized:
    """Workers for the peak, the same headroom in both pools; a rate by the users that it keeps in flight."""
    load, keep = table.question.workload, 1.0 - table.question.headroom
    users = load.users or 1.0
    if load.rate is not None:
        taken = float(times.ttft[row]) + (load.output.mean - 1.0) * float(times.tpot[row])
        users = max(users, load.rate * taken)
    workers = max(1, math.ceil(users / option.usable * (1 - 1e-9)))
    first = max(1, math.ceil(users * option.each / keep * (1 - 1e-9)))
    decode, prefill = table.candidates[option.decode], table.candidates[option.prefill]
    counts = (decode.layout.world * workers, prefill.layout.world * first)
    prices = [c.accelerator.price(table.question.basis) for c in (decode, prefill)]
    known = [count * price for count, price in zip(counts, prices, strict=True) if price is not None]
    dollars = sum(known) if len(known) == len(counts) else float(sum(counts))
    return _Sized(option, row, users, workers, first, sum(counts), dollars)


def _has_role(table: CandidateTable, rows: Pick, role: Literal["prefill", "decode"]) -> npt.NDArray[np.bool_]:
    """Which candidates' engines run their layout as a worker of a split."""
    question, model = table.question, table.question.model

    def runs(c: Candidate) -> bool:
        return refusal(question.capability_for(c.accelerator), model, c.layout, c.weights.method, role) is None

    return np.array([runs(table.candidates[row]) for row in rows], dtype=bool)


def _prefill_rates(table: CandidateTable) -> Array:
    """Prompts per second of one prefill worker of each layout."""
    rows: Pick = np.arange(len(table.candidates))
    constants, _, _ = table.parted
    first = table.first(rows)
    tokens = np.full(len(rows), table.question.workload.input.mean)
    prompt = prefill_terms(first, constants, tokens, 0.0 * tokens, ARRAY).total
    rates: Array = first.attention_dp / (prompt * constants.split_prefill)
    return rates


def _with_hand_off(table: CandidateTable, decode: Pick, prefill: Pick, times: Times) -> Times:
    """TTFT with the time until the cache has moved, sent layer by layer."""
    pairs = list(zip(decode.tolist(), prefill.tolist(), strict=True))
    seconds = {
        (i, j): hand_off_seconds(table.question, table.candidates[j], table.candidates[i]) for i, j in set(pairs)
    }
    added = np.array([seconds[pair] for pair in pairs])
    return replace(
        times, ttft=times.ttft + added, ttft_low=times.ttft_low + added, ttft_high=times.ttft_high + added
    )


def _design(table: CandidateTable, sized: _Sized, times: Times) -> Design:
    question, row, users = table.question, sized.row, sized.users
    decode, first = table.candidates[sized.option.decode], table.candidates[sized.option.prefill]
    ttft = Estimate(float(times.ttft[row]), float(times.ttft_low[row]), float(times.ttft_high[row]))
    tpot = Estimate(float(times.tpot[row]), float(times.tpot_low[row]), float(times.tpot_high[row]))
    output, slo = question.workload.output.mean, question.slo
    speed = Estimate(*(users * output / (t + (output - 1) * p) for t, p in (
        (ttft.mean, tpot.mean), (ttft.high, tpot.high), (ttft.low, tpot.low))))  # fmt: skip
    devices = sized.devices
    quick, slow = devices * tpot.low / tpot.mean, devices * tpot.high / tpot.mean
    needed = (max(1, math.floor(quick)), devices, math.ceil(slow))
    asked = demand(question, speed.mean)
    counts = (
        (decode.accelerator, decode.layout.world * (sized.workers + question.spares)),
        (first.accelerator, first.layout.world * (sized.prefill_workers + question.spares)),
    )
    cost, energy = bill(question, counts, asked, needed, speed.mean)
    return Design(
        accelerator=decode.accelerator, engine=decode.engine.engine, engine_since=decode.engine.since,
        weights=decode.weights, kv_dtype=decode.kv_dtype, layout=decode.layout,
        replicas=sized.workers + question.spares, spares=question.spares, prefill=first.layout,
        prefill_replicas=sized.prefill_workers + question.spares, load=users / (sized.workers + question.spares),
        capacity=max(int(sized.option.load), math.ceil(users / sized.workers)),
        limit="tpot" if slo.tpot is not None else "memory", memory_batch=decode.batch, ttft=ttft, tpot=tpot,
        tokens_per_second=speed, demand=asked, front=(), needed=needed, cost=cost, energy=energy,
        sure=(slo.ttft is None or ttft.high <= slo.ttft) and (slo.tpot is None or tpot.high <= slo.tpot),
        sequences=told_sequences(decode, max(sized.option.load, users / sized.workers)),
        prefill_accelerator=None if first.accelerator.name == decode.accelerator.name else first.accelerator,
        prefill_sequences=told_sequences(first, users / (sized.prefill_workers + question.spares)),
    )  # fmt: skip
