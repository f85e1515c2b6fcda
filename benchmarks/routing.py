"""What routing gains: every policy before the same four replicas with small KV caches, in one run.

    python benchmarks/routing.py [--policies default,round_robin,least_load,cache_aware | all] [--quick]
                                 [--trace FILE.jsonl --length-scale 0.1] [--append benchmarks/results/routing.md]

Each replica has --cores of the processor to itself, as four machines would have. Conversations that share system
prompts arrive somewhat faster than round robin can serve them (measured first, or --rate): there a policy matters.
In every round each policy gets the very same conversations at the same times; a cache salt of its own keeps it from
finding what an earlier one left behind, and its router starts knowing nothing. The order turns every round. Long
runs say more than many: caches fill and replicas part company only after a minute or so.
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fleets import Fleet, fleet, small_pool
from machine import append, describe
from peers.engines import Absent
from routing_figures import brief, plot, table
from shares import shares
from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.policy.routing.router import POLICIES
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Load, Session, Shape, at_times, made_up
from shoal.workload.run import RunOptions, RunResult
from shoal.workload.summary import summarize
from shoal.workload.traces import Cut, trace_load

USUAL = "default,round_robin,least_load,cache_aware"
BASELINE = "round_robin"
DEADLINE = 120.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is run."""

    policies: tuple[str, ...]
    rounds: int
    seconds: float
    """Of arrivals in one run."""
    shape: Shape
    replicas: int
    blocks: int
    trace: Path | None
    length_scale: float
    seed: int

    @property
    def against(self) -> str:
        """The policy that the others are compared with."""
        return "default" if "default" in self.policies else self.policies[0]

    def load(self, rate: float, number: int) -> Load:
        """The sessions of a round; every policy gets the same."""
        if self.trace is not None:
            count = max(8, round(rate * self.seconds))
            # Another stretch of the trace for every round.
            whole = trace_load(self.trace, Cut(count * (number + 1), 0.0, self.length_scale, 1600, 32), 1.0, rate)
            kept = whole.sessions[-count:]
            return replace(whole, sessions=tuple(Session(s.turns, s.at - kept[0].at) for s in kept))
        count = max(8, round(rate * self.seconds))
        load = made_up(self.shape, count, self.seed + number, f"round{number}")
        return at_times(load, "poisson", rate, self.seed + number)


class Bench:
    """Runs policies on one fleet."""

    def __init__(self, setup: Setup, running: Fleet) -> None:
        self.setup = setup
        self.fleet = running
        self.results: dict[str, list[RunResult]] = {name: [] for name in setup.policies}

    async def run(self, policy: str, load: Load, number: int, concurrency: int | None = None) -> RunResult:
        """One policy under one load. Its router, and for its requests every cache, start empty."""
        self.fleet.change("router", {"policy": policy, "seed": number + 1})
        options = TargetOptions(
            self.fleet.url,
            api="chat",
            extra_body=(("cache_salt", f"{time.time_ns()}"),),
            session_keys=True,
        )
        run = RunOptions(
            concurrency=concurrency,
            seconds=self.setup.seconds if concurrency else None,
            warmup=concurrency or len(load.sessions) // 8,
            deadline=DEADLINE,
            seed=self.setup.seed + number,
        )
        async with await Target.open(options) as target:
            return await Runner(target, run).run(load, policy)

    async def capacity(self) -> float:
        """Sessions a second that round robin serves when it always has work."""
        setup = self.setup
        load = made_up(replace(setup.shape, think=0.0), 400, setup.seed, "capacity")
        if setup.trace is not None:
            load = setup.load(400 / setup.seconds, 0)
        result = await self.run(BASELINE, load, -1, concurrency=3 * setup.replicas)
        turns = load.requests / len(load.sessions)
        return summarize(result).completed_rate / turns

    async def rounds(self, rate: float) -> None:
        for number in range(self.setup.rounds):
            load = self.setup.load(rate, number)
            order = self.setup.policies if number % 2 == 0 else self.setup.policies[::-1]
            for policy in order:
                result = await self.run(policy, load, number)
                self.results[policy].append(result)
                print(f"  round {number + 1}: {policy:<12} {brief(result)}", flush=True)


async def measure(setup: Setup, running: Fleet, rate: float | None, share: float) -> tuple[Bench, float]:
    bench = Bench(setup, running)
    if rate is None:
        most = await bench.capacity()
        rate = share * most
        print(f"  {BASELINE} serves {most:.2f} sessions/s; {share:.0%} of it: {rate:.2f}/s", flush=True)
    await bench.rounds(rate)
    return bench, rate


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=USUAL, help=f"of {', '.join(sorted(POLICIES))}; or all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=150.0, help="of arrivals in a run")
    parser.add_argument("--rate", type=float, help="sessions/s; default: --share of what round robin serves")
    parser.add_argument("--share", type=float, default=1.15)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=200, help="of 16 tokens of KV a replica")
    parser.add_argument(
        "--cores", type=float, help="a replica; default: 85 %% of the machine's, divided; 0: shared"
    )
    parser.add_argument("--quantize", choices=("int8", "int4", "none"), default="int8")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--input", default="uniform:30:120", help="tokens that a turn adds")
    parser.add_argument("--output", default="8")
    parser.add_argument("--turns", default="uniform:2:5")
    parser.add_argument("--think", type=float, default=1.5)
    parser.add_argument("--shared", type=int, default=150, help="tokens of a group's system prompt")
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--trace", type=Path, help="a Mooncake .jsonl instead of made-up conversations")
    parser.add_argument("--length-scale", type=float, default=0.1, help="of the trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--quick", action="store_true", help="one short round: shows that it works, and little else"
    )
    parser.add_argument("--plot", type=Path, help="an SVG of TTFT by policy")
    parser.add_argument("--append", type=Path)
    return parser.parse_args()


def chosen(text: str) -> tuple[str, ...]:
    names = tuple(POLICIES) if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            sys.exit(f"--policies: {name!r} is not accepted; expected all or some of {', '.join(sorted(POLICIES))}")
    return names


def main() -> None:
    asked = options()
    setup = Setup(
        policies=chosen(asked.policies),
        rounds=1 if asked.quick else asked.rounds,
        seconds=8.0 if asked.quick else asked.seconds,
        shape=Shape(
            parse_lengths(asked.input, "input"),
            parse_lengths(asked.output, "output"),
            parse_lengths(asked.turns, "turns"),
            asked.think,
            asked.shared,
            asked.groups,
        ),
        replicas=asked.replicas,
        blocks=asked.blocks,
        trace=asked.trace,
        length_scale=asked.length_scale,
        seed=asked.seed,
    )
    facts = describe()
    quantize = None if asked.quantize == "none" else asked.quantize
    cores = 0.85 * (os.cpu_count() or 1) / setup.replicas if asked.cores is None else asked.cores
    config = {
        "pools": [small_pool(asked.model, setup.replicas, setup.blocks, quantize)],
        "health": {"check_timeout": 10, "hang_seconds": 60},
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-routing-") as scratch:
        try:
            with fleet(config, Path(scratch)) as running, shares(running.pids() if cores else (), cores):
                bench, rate = asyncio.run(measure(setup, running, asked.rate, asked.share))
        except Absent as error:
            sys.exit(str(error))
    load = setup.load(rate, 0)
    facts += [
        ("command", shlex.join(["python", *sys.argv])),
        (
            "fleet",
            f"{setup.replicas} replicas of {asked.model} ({asked.quantize}), each one thread, "
            f"{setup.blocks * 16} tokens of KV and "
            + (f"{cores:.2f} of a core of its own" if cores else "the cores that all share"),
        ),
        (
            "load",
            f"{load.description}, think {asked.think:g} s; {len(load.sessions)} sessions a run, "
            "the first eighth of them not measured",
        ),
        ("took", f"{time.monotonic() - started:.0f} s"),
    ]
    body = table(bench.results, setup.against)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.plot:
        plot(bench.results, asked.plot)
        page = asked.append.parent if asked.append else Path.cwd()
        body += f"\n\n![TTFT by policy]({os.path.relpath(asked.plot, page)})"
    if asked.append:
        append(asked.append, f"Routing, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
