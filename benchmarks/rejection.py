"""What early rejection gains: goodput at twice the capacity, with it and without it, in one run.

    python benchmarks/rejection.py [--rounds 3] [--quick] [--append benchmarks/results/rejection.md]

Two replicas of our engine behind our gateway. Capacity comes first: requests/s of a closed loop that keeps both
busy, and what latency is like when nobody waits. Then twice that rate arrives in an open loop, the same
requests at the same times for each setting of the door: none, told the target of the first token, told that of
further ones too. Goodput is requests that met both targets, by scheduled send, a second; a refusal is a miss.
"""

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleets import Fleet, fleet, small_pool
from machine import append, describe
from paired import Paired, Values, Weights, estimates
from peers.engines import Absent
from routing_figures import owners, shown
from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Load, Shape, at_times, made_up
from shoal.workload.objectives import Objectives
from shoal.workload.run import RunOptions, RunResult
from shoal.workload.stats import ratio_estimate
from shoal.workload.summary import summarize

DEADLINE = 120.0
WARMUP_SECONDS = 4.0
ON, FIRST, OFF = "by TTFT and TPOT", "by TTFT alone", "no early rejection"


@dataclass(frozen=True, slots=True)
class Found:
    """What the measured capacity says of the load and the targets."""

    capacity: float
    """Requests a second."""
    objectives: Objectives


class Bench:
    """Drives one fleet of two."""

    def __init__(self, running: Fleet, shape: Shape, seconds: float, seed: int) -> None:
        self.fleet = running
        self.shape = shape
        self.seconds = seconds
        self.seed = seed
        self.results: dict[str, list[RunResult]] = {OFF: [], FIRST: [], ON: []}

    async def run(self, load: Load, options: RunOptions) -> RunResult:
        target = TargetOptions(self.fleet.url, api="chat", extra_body=(("cache_salt", f"{time.time_ns()}"),))
        async with await Target.open(target) as opened:
            return await Runner(opened, options).run(load)

    async def closed(self, concurrency: int, seconds: float) -> RunResult:
        load = made_up(self.shape, 2000, self.seed, f"closed{concurrency}")
        options = RunOptions(
            concurrency=concurrency, seconds=seconds, warmup=2 * concurrency, deadline=DEADLINE, seed=self.seed
        )
        return await self.run(load, options)

    async def capacity(self, concurrency: int, ttft: float | None, tpot: float | None) -> Found:
        """Targets not given: 4 × the median TTFT of an idle fleet, 1.5 × the median TPOT of a busy one."""
        easy = await self.closed(2, self.seconds / 2)
        busy = await self.closed(concurrency, self.seconds)
        firsts = [r.ttft for r in easy.measured if r.ttft is not None]
        others = [r.tpot for r in busy.measured if r.tpot is not None]
        capacity = summarize(busy).completed_rate
        if not capacity or not firsts or not others:
            raise Absent("the fleet answered nothing in the closed loop")
        return Found(
            capacity,
            Objectives(ttft or 4 * float(np.median(firsts)), tpot or 1.5 * float(np.median(others))),
        )

    async def rounds(self, found: Found, times: float, margin: float, rounds: int) -> None:
        """`margin`: the share of the targets that the door is told, because predictions have errors."""
        told = {
            "ttft_target": margin * (found.objectives.ttft or 0.0),
            "tpot_target": margin * (found.objectives.tpot or 0.0),
        }
        doors: dict[str, dict[str, float]] = {OFF: {}, FIRST: {"ttft_target": told["ttft_target"]}, ON: told}
        rate = times * found.capacity
        for number in range(rounds):
            count = max(10, round(rate * (self.seconds + WARMUP_SECONDS)))
            load = at_times(made_up(self.shape, count, self.seed + number, f"r{number}"), "poisson", rate, number)
            options = RunOptions(warmup=round(rate * WARMUP_SECONDS), deadline=DEADLINE, seed=self.seed + number)
            for name in doors if number % 2 == 0 else reversed(doors):
                self.fleet.change("admission", doors[name])
                result = await self.run(load, options)
                self.results[name].append(result)
                print(f"  round {number + 1}: {name:<18} {brief(result, found.objectives)}", flush=True)


def goodput(result: RunResult, objectives: Objectives) -> float:
    return sum(objectives.met(r) for r in result.measured) / max(result.window, 1e-9)


def brief(result: RunResult, objectives: Objectives) -> str:
    measured = result.measured
    met = sum(objectives.met(r) for r in measured)
    refused = sum(r.status == 429 for r in measured)
    missed = Counter(name for r in measured if r.ok for name in objectives.missed(r))
    return (
        f"{met} of {len(measured)} met the targets, {refused} refused, {goodput(result, objectives):.2f}/s, "
        f"answered but missed: {dict(missed)}"
    )


def table(results: dict[str, list[RunResult]], found: Found, rate: float) -> str:
    rows = {name: owners(runs) for name, runs in results.items()}
    sessions = len(rows[OFF])
    seconds = sum(r.window for r in results[OFF])
    goal = found.objectives

    def first(level: float) -> Paired:
        def figure(values: Values) -> Callable[[Weights], float]:
            return lambda weights: values.quantile(level, weights)

        read = {n: Values.of(r, lambda record: record.ttft if record.ok else None) for n, r in rows.items()}
        return estimates({n: figure(v) for n, v in read.items()}, sessions, OFF)

    def good(values: Values) -> Callable[[Weights], float]:
        return lambda weights: values.total(weights) / seconds

    met_by = {n: Values.of(r, lambda record: float(goal.met(record))) for n, r in rows.items()}
    goodputs = estimates({n: good(v) for n, v in met_by.items()}, sessions, OFF)
    half, tail = first(0.5), first(0.99)
    head = "| admission | goodput, 1/s | met | refused | answered late | TTFT p50, s | TTFT p99, s | refusal, ms |"
    lines = [head, "|---" * 8 + "|"]
    for name, runs in results.items():
        measured = [r for run in runs for r in run.measured]
        met = sum(goal.met(r) for r in measured)
        refusals = sorted(r.ended - r.scheduled for r in measured if r.status == 429)
        late = sum(r.ok and not goal.met(r) for r in measured)
        cells = [
            shown(goodputs.values[name]),
            f"{met} of {len(measured)}",
            f"{len(refusals)}",
            f"{late}",
            shown(half.values[name]),
            shown(tail.values[name]),
            f"{refusals[len(refusals) // 2] * 1e3:.1f}" if refusals else "–",
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    pairs = [(goodput(a, goal), goodput(b, goal)) for a, b in zip(results[ON], results[OFF], strict=True)]
    if all(without > 0 for _, without in pairs):
        times = (
            f"{shown(ratio_estimate([with_ / without for with_, without in pairs]))} times that without, by round"
        )
    else:
        times = "without it some rounds had none at all"
    gain = goodputs.values[ON].value - goodputs.values[OFF].value
    return "\n".join(lines) + (
        f"\n\nCapacity {found.capacity:.2f} requests/s; {rate:.2f}/s arrived. Targets: {goal}. Goodput with early "
        f"rejection is {gain:+.2f}/s; {times}. TTFT is that of whole answers, "
        "from the scheduled send."
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=16.0, help="of measured arrivals in a run")
    parser.add_argument("--times", type=float, default=2.0, help="of the capacity")
    parser.add_argument("--margin", type=float, default=0.85, help="of the targets, that the door is told")
    parser.add_argument("--ttft", type=float, help="target, s; default: four times the median without a queue")
    parser.add_argument("--tpot", type=float, help="target, s; default: 1.5 times the median when busy")
    parser.add_argument("--concurrency", type=int, default=16, help="that measures the capacity")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=1200, help="of 16 tokens of KV a replica")
    parser.add_argument("--input", default="uniform:60:180")
    parser.add_argument("--output", default="uniform:12:24")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--append", type=Path)
    return parser.parse_args()


async def measure(asked: argparse.Namespace, running: Fleet) -> tuple[Bench, Found]:
    shape = Shape(parse_lengths(asked.input, "input"), parse_lengths(asked.output, "output"))
    bench = Bench(running, shape, 6.0 if asked.quick else asked.seconds, asked.seed)
    found = await bench.capacity(asked.concurrency, asked.ttft, asked.tpot)
    print(f"  capacity {found.capacity:.2f} requests/s; targets {found.objectives}", flush=True)
    await bench.rounds(found, asked.times, asked.margin, 1 if asked.quick else asked.rounds)
    return bench, found


def main() -> None:
    asked = options()
    facts = describe()
    pool = small_pool(asked.model, asked.replicas, asked.blocks)
    config = {"pools": [pool], "health": {"check_timeout": 10, "hang_seconds": 60}}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-rejection-") as scratch:
        try:
            with fleet(config, Path(scratch)) as running:
                bench, found = asyncio.run(measure(asked, running))
        except Absent as error:
            sys.exit(str(error))
    facts += [
        ("command", shlex.join(["python", *sys.argv])),
        (
            "fleet",
            f"{asked.replicas} replicas of {asked.model}, each one thread and {asked.blocks * 16} tokens of KV",
        ),
        ("load", f"{bench.results[ON][0].load}, the first {WARMUP_SECONDS:g} s not measured"),
        ("took", f"{time.monotonic() - started:.0f} s"),
    ]
    body = table(bench.results, found, asked.times * found.capacity)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Early rejection, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
