"""The search: every layout that could be, through the memory gate, sized for the traffic, priced and ranked.

    plan = search(Question(model, workload, slo, accelerators, engines))

Nothing is pruned but what cannot serve: a layout drops out because a rule, its memory or a target says so, and the
plan counts them all.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shoal.plan.candidates import Candidate, gate, told_sequences
from shoal.plan.capacity import Capacity, capacity, load_of_replica, rate_at, replicas_needed
from shoal.plan.cost import bill, demand, rank, whole
from shoal.plan.designs import BestPossible, Design, FrontPoint, Limit, Miss, Plan, Rejection
from shoal.plan.load_grid import Grid, measure_grid
from shoal.plan.question import MAX_DEVICES, Question
from shoal.plan.sizing import Array, CandidateTable, Pick, Times
from shoal.plan.splitting import split_designs
from shoal.plan.step_time import Estimate
from shoal.plan.work import model_work

FRONTS = 60
"""Best designs that carry their own curve of throughput against speed."""


def search(question: Question) -> Plan:
    """The whole answer to a question. Raises `SpecError` for one that makes no sense."""
    held: list[Candidate] = []
    missed: list[Miss] = []
    for found in gate(question):
        (held if isinstance(found, Candidate) else missed).append(found)  # type: ignore[arg-type]
    considered = len(held) + len(missed)
    if not held:
        return Plan(question, (), _rejections(missed), (), considered, _no_memory(question, missed), tuple(missed))
    table = CandidateTable(question, held, model_work(question.model))
    measured = measure_grid(table)
    ends = {end: capacity(question, measured, end) for end in ("mean", "low", "high")}
    designs, late = ([], []) if question.split == "only" else _aggregated(table, measured, ends)
    if question.split != "never":
        designs += split_designs(table)
    missed += late
    ranked = list(rank(designs))
    places = {_identity(c): index for index, c in enumerate(held)}
    for place, entry in enumerate(ranked[:FRONTS]):
        ranked[place] = replace(entry, design=_with_front(question, entry.design, places, held, measured))
    impossible = None if ranked else _impossible(question, table, measured, late)
    front = _front(question, held, measured)
    return Plan(question, tuple(ranked), _rejections(missed), front, considered, impossible, tuple(missed))


def _aggregated(
    table: CandidateTable, measured: Grid, ends: dict[str, Capacity]
) -> tuple[list[Design], list[Miss]]:
    """Designs without a split, and what the targets turned down."""
    question = table.question
    sized_by = ends["high" if question.assurance == "high" else "mean"]
    needed = replicas_needed(question, sized_by)
    total = np.where(np.isfinite(needed), needed + question.spares, 1.0)
    load = load_of_replica(question, measured, total)
    alive = np.flatnonzero(np.isfinite(needed))
    missed = [
        _target_miss(question, c, measured, i) for i, c in enumerate(table.candidates) if not np.isfinite(needed[i])
    ]
    if not len(alive):
        return [], missed
    times = _rows_of(measured.at(load), alive)
    rates = rate_at(question, measured, load)
    others = {end: replicas_needed(question, ends[end]) for end in ("low", "high")}
    designs: list[Design] = []
    most = question.max_devices or MAX_DEVICES
    for at, index in enumerate(alive.tolist()):
        c = table.candidates[index]
        devices = int(total[index]) * c.layout.world
        if devices > most:
            there = "are planned for" if question.max_devices is None else "there are"
            detail = f"{devices:,} devices, of {most:,} that {there}"
            part = c.accelerator.name
            missed.append(Miss("devices", c.label, detail, devices / most, devices, part, c.layout))
            continue
        spread = tuple(float(others[end][index]) for end in ("low", "high"))
        designs.append(
            _design(
                question, c, index, at, int(needed[index]), spread, (load, rates), times, sized_by, ends["high"]
            )
        )
    return designs, missed


def _design(
    question: Question, c: Candidate, index: int, at: int, needed: int, spread: tuple[float, ...],
    loads: tuple[Array, Array], times: Times, sized: Capacity, high: Capacity,
) -> Design:  # fmt: skip
    world, replicas = c.layout.world, needed + question.spares
    ttft, tpot = estimates(times, at)
    output = question.workload.output.mean
    load, rate = (float(values[index]) for values in loads)
    # Fewer users than replicas leave some idle.
    busy = min(replicas, question.workload.users or replicas) if question.workload.rate is None else replicas
    done = rate * output * busy
    taken, quick, late = (t + (output - 1) * p for t, p in (
        (ttft.mean, tpot.mean), (ttft.low, tpot.low), (ttft.high, tpot.high)))  # fmt: skip
    speed = Estimate(done, done * taken / late, done * taken / quick)
    slow = spread[1] if np.isfinite(spread[1]) else needed * tpot.high / tpot.mean
    range_ = (whole(min(spread[0], needed)) * world, needed * world, whole(max(slow, needed)) * world)
    asked = demand(question, speed.mean)
    full = max(speed.mean, float(sized.rate[index]) * output * replicas)
    cost, energy = bill(question, ((c.accelerator, replicas * world),), asked, range_, full)
    return Design(
        accelerator=c.accelerator, engine=c.engine.engine, engine_since=c.engine.since, weights=c.weights,
        kv_dtype=c.kv_dtype, layout=c.layout, replicas=replicas, spares=question.spares, prefill=None,
        prefill_replicas=0, load=load, capacity=int(sized.requests[index]),
        limit=limit_of(question, c, sized, index), memory_batch=c.batch, ttft=ttft, tpot=tpot,
        tokens_per_second=speed, demand=asked, front=(), needed=range_, cost=cost, energy=energy,
        sure=bool(high.requests[index] >= 1) and _sure(question, ttft, tpot),
        sequences=told_sequences(c, max(float(sized.requests[index]), load)),
    )  # fmt: skip


def estimates(times: Times, at: int) -> tuple[Estimate, Estimate]:
    """(TTFT, TPOT) of one row."""
    return (
        Estimate(float(times.ttft[at]), float(times.ttft_low[at]), float(times.ttft_high[at])),
        Estimate(float(times.tpot[at]), float(times.tpot_low[at]), float(times.tpot_high[at])),
    )


def _sure(question: Question, ttft: Estimate, tpot: Estimate) -> bool:
    slo = question.slo
    return (slo.ttft is None or ttft.high <= slo.ttft) and (slo.tpot is None or tpot.high <= slo.tpot)


def limit_of(question: Question, c: Candidate, sized: Capacity, index: int) -> Limit:
    """What ends a replica's capacity."""
    tight = str(sized.tight[index])
    if tight:
        return "ttft" if tight == "ttft" else "tpot"
    users = question.workload.users
    if users is not None and c.largest * (1 - question.headroom) >= users:
        return "traffic"
    return "memory" if c.largest == c.batch else "engine"


def _identity(c: Candidate | Design) -> tuple[object, ...]:
    return c.layout, c.accelerator.name, c.weights, c.kv_dtype


def _with_front(
    question: Question,
    design: Design,
    places: dict[tuple[object, ...], int],
    held: Sequence[Candidate],
    measured: Grid,
) -> Design:
    index = places[_identity(design)]
    user, device = _curve(question, held[index : index + 1], _rows(measured, slice(index, index + 1)))
    return replace(design, front=tuple(zip(user[0].tolist(), device[0].tolist(), strict=True)))


def _rows(measured: Grid, rows: slice) -> Grid:
    return Grid(measured.load[rows], _rows_of(measured.times, rows))


def _rows_of(times: Times, rows: slice | Pick) -> Times:
    return Times(*(getattr(times, name)[rows] for name in Times.__slots__))


def _curve(question: Question, held: Sequence[Candidate], measured: Grid) -> tuple[Array, Array]:
    """(tok/s/user, tok/s/device) of every candidate at every load."""
    output = question.workload.output.mean
    world = np.array([float(c.layout.world) for c in held])[:, None]
    taken = measured.times.ttft + (output - 1.0) * measured.times.tpot
    return 1.0 / measured.times.tpot, measured.load * output / taken / world


def _front(question: Question, held: Sequence[Candidate], measured: Grid) -> tuple[FrontPoint, ...]:
    user, device = (values.ravel() for values in _curve(question, held, measured))
    best, points = -1.0, []
    for index in np.lexsort((-device, -user)):
        if device[index] > best * 1.005:
            c = held[int(index) // measured.load.shape[1]]
            best = float(device[index])
            points.append(FrontPoint(float(user[index]), best, c.label, c.accelerator.name))
    return tuple(points)


def _target_miss(question: Question, c: Candidate, measured: Grid, index: int) -> Miss:
    slo = question.slo
    ttft, tpot = float(measured.times.ttft[index, 0]), float(measured.times.tpot[index, 0])
    if slo.tpot is not None and tpot > slo.tpot:
        detail = f"{tpot * 1e3:,.1f} ms a token with one request alone, of {slo.tpot * 1e3:g} ms allowed"
        return Miss("TPOT", c.label, detail, tpot / slo.tpot, c.layout.world, c.accelerator.name, c.layout)
    if slo.ttft is not None and ttft > slo.ttft:
        detail = f"{ttft:,.2f} s to the first token with one request alone, of {slo.ttft:g} s allowed"
        return Miss("TTFT", c.label, detail, ttft / slo.ttft, c.layout.world, c.accelerator.name, c.layout)
    detail = "the upper end of its interval misses a target even with one request alone"
    return Miss(
        "TTFT" if slo.tpot is None else "TPOT", c.label, detail, 1.0, c.layout.world, c.accelerator.name, c.layout
    )


def _rejections(missed: Sequence[Miss]) -> tuple[Rejection, ...]:
    """One entry a reason, with the nearest miss."""
    reasons: dict[str, list[Miss]] = {}
    for miss in missed:
        reasons.setdefault(miss.reason, []).append(miss)
    found = []
    for group in reasons.values():
        nearest = min(group, key=lambda miss: (miss.short, miss.devices, miss.label))
        found.append(Rejection(nearest.reason, len(group), nearest.label, nearest.detail))
    return tuple(sorted(found, key=lambda rejection: -rejection.count))


def _no_memory(question: Question, missed: Sequence[Miss]) -> BestPossible:
    fitting = [m for m in missed if m.reason in ("weights do not fit", "no room for KV", "context does not fit")]
    if not fitting:
        message = missed[0].detail if missed else "no layout to consider"
        return BestPossible("memory", f"Nothing can run {question.model.name} here: {message}.")
    nearest = min(fitting, key=lambda m: (m.short, m.devices))
    where = "" if question.max_devices is None else f" with {question.max_devices} devices at most"
    message = f"{question.model.name} fits nowhere{where}. Nearest: {nearest.label}: {nearest.detail}."
    return BestPossible("memory", message)


def _formats(table: CandidateTable) -> str:
    """Which ways of storing weights were looked at, and whether that was by request."""
    names = ", ".join(dict.fromkeys(c.weights.name for c in table.candidates))
    return f"weights were asked for in {names} only" if table.question.weights else f"searched: {names} weights"


def _impossible(question: Question, table: CandidateTable, measured: Grid, missed: Sequence[Miss]) -> BestPossible:
    """Which target nothing meets, and the best that can be had."""
    slo, times = question.slo, measured.times
    quickest, steadiest = int(times.ttft[:, 0].argmin()), int(times.tpot[:, 0].argmin())
    first, token = table.candidates[quickest].label, table.candidates[steadiest].label
    ttft = Estimate(*(float(v[quickest, 0]) for v in (times.ttft, times.ttft_low, times.ttft_high)))
    tpot = Estimate(*(float(v[steadiest, 0]) for v in (times.tpot, times.tpot_low, times.tpot_high)))
    parts: list[str] = []
    if slo.tpot is not None and tpot.mean > slo.tpot:
        floor = float(table.work.dense_bytes[steadiest] / table.work.bandwidth[steadiest])
        parts.append(
            f"TPOT {slo.tpot * 1e3:g} ms is impossible: the best is {tpot.mean * 1e3:.3g} ms "
            f"({tpot.low * 1e3:.3g} to {tpot.high * 1e3:.3g}), with one request alone on {token}; "
            f"{_formats(table)}, "
            f"and reading its weights at the memory's bandwidth takes {floor * 1e3:.2g} ms per token"
        )
    if slo.ttft is not None and ttft.mean > slo.ttft:
        parts.append(
            f"TTFT {slo.ttft:g} s is impossible: the best is {ttft.mean:.3g} s "
            f"({ttft.low:.3g} to {ttft.high:.3g}), with one request alone on {first}"
        )
    what: Literal["ttft", "tpot", "both", "devices"] = "both"
    if len(parts) == 1:
        what = "tpot" if parts[0].startswith("TPOT") else "ttft"
    short = [miss for miss in missed if miss.reason == "devices"]
    if not parts and short:
        what, few = "devices", min(short, key=lambda miss: miss.devices)
        most = (
            f"there are {question.max_devices:,}"
            if question.max_devices
            else f"at most {MAX_DEVICES:,} are planned for"
        )
        parts.append(f"the traffic needs {few.devices:,} devices ({few.label}), and {most}")
    if not parts:
        parts.append(
            f"each target can be met, but not both by one design: TTFT {ttft.mean:.3g} s on {first}, "
            f"TPOT {tpot.mean * 1e3:.3g} ms on {token}"
        )
    least = min(c.layout.world for c in table.candidates)
    return BestPossible(what, "; ".join(parts) + ".", ttft, first, tpot, token, least)
