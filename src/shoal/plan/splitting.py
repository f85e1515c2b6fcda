"""Prefill and decode in pools of their own: which layouts for each, and how many workers.

A decode pool answers for TPOT and a prefill pool for TTFT, so each is chosen by what it does a device; the few best
of both are then evaluated together, hand-off included, with the numbers of workers that the traffic needs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.plan.collectives import hand_off
from shoal.plan.cost import bill, demand
from shoal.plan.designs import Design
from shoal.plan.kv import sequence_curve
from shoal.plan.numeric import ARRAY
from shoal.plan.sizing import Array, CandidateTable, Grid, Pick, Times
from shoal.plan.step_time import Estimate, prefill_terms

PER_POOL = 3
"""Layouts of each pool that are tried together."""
PREFILL_MARGINS = (1.0, 1.25, 1.6, 2.2)
"""Prefill workers over what the mean rate needs: queues ask for more."""
_ENDS = ("ttft", "tpot", "ttft_low", "ttft_high", "tpot_low", "tpot_high")


@dataclass(frozen=True, slots=True)
class _Pair:
    decode: int
    prefill: int
    workers: int
    prefill_workers: int


def split_designs(table: CandidateTable, measured: Grid) -> list[Design]:
    """Split designs that meet the targets, the cheapest numbers of workers for each pair of layouts."""
    pairs = list(_pairs(table, measured))
    if not pairs:
        return []
    question = table.question
    decode = np.array([pair.decode for pair in pairs])
    prefill = np.array([pair.prefill for pair in pairs])
    spares = question.spares
    workers = np.array([float(pair.workers + spares) for pair in pairs])
    first = np.array([float(pair.prefill_workers + spares) for pair in pairs])
    users = np.full(len(pairs), _in_flight(table))
    times = _with_hand_off(table, prefill, table.evaluate_split(decode, prefill, users, workers, first))
    slo, end = question.slo, "high" if question.assurance == "high" else "mean"
    ttft, tpot = times.at(end)
    good = np.ones(len(pairs), dtype=bool)
    if slo.ttft is not None:
        good &= ttft <= slo.ttft
    if slo.tpot is not None:
        good &= tpot <= slo.tpot
    served = users * question.workload.output.mean / _taken(table, times)
    if question.workload.rate is not None:
        good &= served >= question.workload.rate * question.workload.output.mean
    best: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(good):
        key = (pairs[row].decode, pairs[row].prefill)
        if key not in best or _devices(table, pairs[row]) < _devices(table, pairs[best[key]]):
            best[key] = int(row)
    made = [_design(table, pairs[row], row, times, float(users[row])) for row in best.values()]
    limit = question.max_devices
    return [design for design in made if limit is None or design.devices <= limit]


def _in_flight(table: CandidateTable) -> float:
    """Requests in flight at the peak: given, or from the rate by Little's law at the targets' (or usual) times."""
    load, slo = table.question.workload, table.question.slo
    if load.users is not None:
        return load.users
    assert load.rate is not None
    return max(1.0, load.rate * ((slo.ttft or 1.0) + load.output.mean * (slo.tpot or 0.03)))


def _taken(table: CandidateTable, times: Times) -> Array:
    taken: Array = times.ttft + (table.question.workload.output.mean - 1.0) * times.tpot
    return taken


def _devices(table: CandidateTable, pair: _Pair) -> int:
    first = table.candidates[pair.prefill].layout.world * pair.prefill_workers
    return table.candidates[pair.decode].layout.world * pair.workers + first


def _pairs(table: CandidateTable, measured: Grid) -> Iterator[_Pair]:
    """Numbers of workers for the most promising layouts of every accelerator, weights and cache."""
    question = table.question
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, c in enumerate(table.candidates):
        domain = c.accelerator.scale_up.domain or c.accelerator.devices_per_node
        # A hand-off needs a wire between the pools: a network, or a scale-up domain that holds both.
        if c.accelerator.nic is not None or 2 * c.layout.world <= domain:
            groups.setdefault((c.accelerator.name, c.weights.name, c.kv_dtype), []).append(index)
    per_worker, decode_only = _decode_capacity(table, measured)
    rates = _prefill_rates(table)
    users, output = _in_flight(table), question.workload.output.mean
    usable = np.maximum(np.floor(per_worker * (1 - question.headroom)), 1.0)
    for members in groups.values():
        rows = np.array(members)
        able = rows[per_worker[rows] >= 1]
        if not len(able):
            continue
        decode_order = np.argsort(-(usable / table.world)[able], kind="stable")[:PER_POOL]
        prefill_order = np.argsort(-(rates / table.world)[rows], kind="stable")[:PER_POOL]
        for i in able[decode_order]:
            workers = math.ceil(users / usable[i])
            rate = question.workload.rate or users / (output * float(decode_only[i]))
            for j in rows[prefill_order]:
                counts = {math.ceil(rate / float(rates[j]) * margin) for margin in PREFILL_MARGINS}
                for count in sorted(counts):
                    yield _Pair(int(i), int(j), workers, count)


def _decode_capacity(table: CandidateTable, measured: Grid) -> tuple[Array, Array]:
    """Requests that a worker that only decodes takes within TPOT, and its seconds a token there."""
    question, count = table.question, len(table.candidates)
    rows = np.repeat(np.arange(count), measured.load.shape[1])
    loads = measured.load.ravel()
    many = np.full(len(rows), 1e6)
    times = table.evaluate_split(rows, rows, loads, np.ones(len(rows)), many)
    _, tpot = times.at("high" if question.assurance == "high" else "mean")
    shaped = np.maximum.accumulate(tpot.reshape(measured.load.shape), axis=1)
    meets = np.ones(shaped.shape, dtype=bool) if question.slo.tpot is None else shaped <= question.slo.tpot
    last = np.where(meets.any(axis=1), meets.shape[1] - 1 - meets[:, ::-1].argmax(axis=1), 0)
    at = np.arange(count)
    return np.where(meets.any(axis=1), np.floor(measured.load[at, last] * (1 + 1e-9)), 0.0), shaped[at, last]


def _prefill_rates(table: CandidateTable) -> Array:
    """Prompts a second of one prefill worker of each layout."""
    rows: Pick = np.arange(len(table.candidates))
    constants, _, _ = table.parted
    first = table.first(rows)
    tokens = np.full(len(rows), table.question.workload.input.mean)
    prompt = prefill_terms(first, constants, tokens, 0.0 * tokens, ARRAY).total
    rates: Array = first.attention_dp / (prompt * constants.split_prefill)
    return rates


def _with_hand_off(table: CandidateTable, prefill: Pick, times: Times) -> Times:
    """TTFT with the time until the cache has moved, sent layer by layer over the prefill worker's own ports."""
    added = np.array([hand_off_seconds(table, int(j)) for j in prefill])
    return Times(*(getattr(times, name) + (added if name.startswith("ttft") else 0.0) for name in _ENDS))


def hand_off_seconds(table: CandidateTable, candidate: int, streamed: bool = True) -> float:
    """Seconds that moving one prompt's cache off a prefill worker takes, over all of the worker's ports."""
    c, question = table.candidates[candidate], table.question
    moved = sequence_curve(question.model, c.kv_dtype).bytes(question.workload.input.mean)
    link = c.accelerator.nic or c.accelerator.scale_up
    layers = len(question.model.layers) if streamed else 1
    return hand_off(moved, c.layout.world // c.layout.dp, link.bandwidth, link.latency or 20e-6, layers)


def _design(table: CandidateTable, pair: _Pair, row: int, times: Times, users: float) -> Design:
    question, decode, first = table.question, table.candidates[pair.decode], table.candidates[pair.prefill]
    ttft = Estimate(float(times.ttft[row]), float(times.ttft_low[row]), float(times.ttft_high[row]))
    tpot = Estimate(float(times.tpot[row]), float(times.tpot_low[row]), float(times.tpot_high[row]))
    output, slo = question.workload.output.mean, question.slo
    speed = Estimate(*(users * output / (t + (output - 1) * p) for t, p in (
        (ttft.mean, tpot.mean), (ttft.high, tpot.high), (ttft.low, tpot.low))))  # fmt: skip
    devices = _devices(table, pair)
    quick, slow = devices * tpot.low / tpot.mean, devices * tpot.high / tpot.mean
    needed = (max(1, math.floor(quick)), devices, math.ceil(slow))
    workers, asked = pair.workers + question.spares, demand(question, speed.mean)
    spare = question.spares * (decode.layout.world + first.layout.world)
    full = math.ceil(users / pair.workers)
    cost, energy = bill(question, decode.accelerator, devices + spare, asked, needed, speed.mean)
    return Design(
        accelerator=decode.accelerator, engine=decode.engine.engine, engine_since=decode.engine.since,
        weights=decode.weights, kv_dtype=decode.kv_dtype, layout=decode.layout, replicas=workers,
        spares=question.spares, prefill=first.layout, prefill_replicas=pair.prefill_workers + question.spares,
        load=users / workers, capacity=full, limit="tpot" if slo.tpot is not None else "memory",
        memory_batch=decode.batch, ttft=ttft, tpot=tpot, tokens_per_second=speed, demand=asked, front=(),
        sure=(slo.ttft is None or ttft.high <= slo.ttft) and (slo.tpot is None or tpot.high <= slo.tpot),
        needed=needed, cost=cost, energy=energy,
    )  # fmt: skip
