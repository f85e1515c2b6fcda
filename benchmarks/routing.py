"""What routing gains: every policy before the same four replicas with small KV caches, in one run.

    python benchmarks/routing.py [--policies default,round_robin,least_load,cache_aware | all] [--quick]
                                 [--trace FILE.jsonl --length-scale 0.1] [--append docs/benchmarks.md]

Conversations that share system prompts arrive at a rate near what round robin can serve (measured first, or --rate).
In every round each policy gets the very same conversations at the same times; a cache salt of its own keeps it from
finding what an earlier one left behind, and its router starts knowing nothing. The order turns from round to round.
"""

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fleets import Fleet, fleet, small_pool
from machine import append, describe
from paired import Paired, Values, Weights, estimates
from peers.engines import Absent
from shoal.bench.lengths import parse_lengths
from shoal.bench.load import Load, Session, Shape, at_times, made_up
from shoal.bench.records import Record
from shoal.bench.run import Runner, RunOptions, RunResult
from shoal.bench.stats import Estimate, ratio_estimate
from shoal.bench.target import Target, TargetOptions
from shoal.bench.traces import Cut, trace_load
from shoal.policy.routing.router import POLICIES

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
        done = [r for r in result.measured if r.ok]
        return len(done) / max(result.window, 1e-9) / turns

    async def rounds(self, rate: float) -> None:
        for number in range(self.setup.rounds):
            load = self.setup.load(rate, number)
            order = self.setup.policies if number % 2 == 0 else self.setup.policies[::-1]
            for policy in order:
                result = await self.run(policy, load, number)
                self.results[policy].append(result)
                print(f"  round {number + 1}: {policy:<12} {brief(result)}", flush=True)


def brief(result: RunResult) -> str:
    done = [r for r in result.measured if r.ok]
    ttft = sorted(r.ttft for r in done if r.ttft is not None)
    if not ttft:
        return f"nothing of {len(result.measured)} answered"
    cached, prompt = sum(r.cached_tokens or 0 for r in done), sum(r.prompt_tokens or 0 for r in done)
    return (
        f"{len(done)}/{len(result.measured)} ok, hit rate {cached / max(1, prompt):.2f}, TTFT p50 "
        f"{ttft[len(ttft) // 2]:.2f} p99 {ttft[min(len(ttft) - 1, int(0.99 * len(ttft)))]:.2f} s, "
        f"{output_rate(result):.1f} tokens/s"
    )


def output_rate(result: RunResult) -> float:
    """Output tokens a second from the first measured arrival to the end of the last whole answer."""
    done = [r for r in result.measured if r.ok]
    if not done:
        return 0.0
    span = max(r.ended for r in done) - min(r.scheduled for r in result.measured)
    return sum(r.output_tokens for r in done) / span


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    paired: Paired
    scale: float = 1.0
    digits: int = 2


def owners(results: Sequence[RunResult]) -> list[list[Record]]:
    """Measured requests by session, all rounds one after the other; the same places for every policy."""
    found: list[list[Record]] = []
    for result in results:
        sessions = max((r.session for r in result.records), default=-1) + 1
        rows: list[list[Record]] = [[] for _ in range(sessions)]
        for record in result.measured:
            rows[record.session].append(record)
        found += rows
    return found


def columns(bench: Bench) -> list[Column]:
    """Every figure that sessions can be resampled for."""
    by_policy = {name: owners(results) for name, results in bench.results.items()}
    sessions = len(by_policy[bench.setup.against])

    def at(read: Callable[[Record], float | None], level: float) -> Paired:
        values = {name: Values.of(rows, read) for name, rows in by_policy.items()}
        figures = {n: (lambda w, v=v: v.quantile(level, w)) for n, v in values.items()}
        return estimates(figures, sessions, bench.setup.against)

    def hits(name: str) -> Callable[[Weights], float]:
        cached = Values.of(by_policy[name], lambda r: float(r.cached_tokens or 0) if r.ok else None)
        prompt = Values.of(by_policy[name], lambda r: float(r.prompt_tokens or 0) if r.ok else None)
        return lambda w: cached.total(w) / max(1.0, prompt.total(w))

    return [
        Column("hit rate, %", estimates({n: hits(n) for n in by_policy}, sessions, bench.setup.against), 100, 0),
        Column("TTFT p50, s", at(lambda r: r.ttft, 0.5)),
        Column("TTFT p99, s", at(lambda r: r.ttft, 0.99)),
        Column("E2E p50, s", at(lambda r: r.e2e, 0.5)),
        Column("E2E p99, s", at(lambda r: r.e2e, 0.99)),
    ]


def shown(e: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    text = f"{e.value * scale:.{digits}f}"
    if e.low is None or e.high is None:
        return text
    return f"{text} [{e.low * scale:.{digits}f}, {e.high * scale:.{digits}f}]"


def throughputs(bench: Bench) -> tuple[dict[str, float], dict[str, Estimate]]:
    """(tokens/s by policy, ratio to the policy compared with) over rounds."""
    rates = {name: [output_rate(r) for r in results] for name, results in bench.results.items()}
    base = rates[bench.setup.against]
    ratios = {
        n: ratio_estimate([max(a, 1e-9) / max(b, 1e-9) for a, b in zip(v, base, strict=True)])
        for n, v in rates.items()
    }
    return {n: float(np.mean(v)) for n, v in rates.items()}, ratios


def table(bench: Bench) -> str:
    found, (rates, ratios) = columns(bench), throughputs(bench)
    base = bench.setup.against
    names = [c.name for c in found] + ["tokens/s", "not answered", f"TTFT p99 ÷ {base}", f"tokens/s ÷ {base}"]
    lines = ["| policy | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    tail = found[2].paired.ratios
    for name, results in bench.results.items():
        cells = [shown(c.paired.values[name], c.scale, c.digits) for c in found]
        missing = sum(not r.ok for result in results for r in result.measured)
        of = sum(len(result.measured) for result in results)
        cells += [f"{rates[name]:.1f}", f"{missing} of {of}"]
        cells += ["–", "–"] if name == base else [shown(tail[name]), shown(ratios[name])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = (
        f"\n\nIntervals are 95 %; those of TTFT, E2E and hit rates resample sessions, the same for every policy; that of "
        f"tokens/s is Student's over {bench.setup.rounds} rounds. Hit rate: `cached_tokens` ÷ prompt tokens, as the engines "
        "count. TTFT counts from the scheduled send. " + verdict(bench, tail, ratios)
    )
    return "\n".join(lines) + notes


def verdict(bench: Bench, tail: dict[str, Estimate], ratios: dict[str, Estimate]) -> str:
    """What the intervals allow to be said of the policy that the others are compared with."""
    said = []
    for name in bench.setup.policies:
        if name == bench.setup.against:
            continue
        e, t = tail[name], ratios[name]
        low, high = e.low if e.low is not None else 0.0, e.high if e.high is not None else float("inf")
        what = "shorter" if low > 1 else "longer" if high < 1 else "not different"
        rate = "less" if (t.low or 0) > 1 else "more" if (t.high or float("inf")) < 1 else "no different"
        said.append(f"than {name}: {what} TTFT p99, {rate} throughput")
    return f"{bench.setup.against} has, " + "; ".join(said) + "." if said else ""


def plot(bench: Bench, path: Path) -> None:
    """Share of requests whose first token had come, over time, a line for every policy."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, results in bench.results.items():
        measured = [r for result in results for r in result.measured]
        times = sorted(r.ttft for r in measured if r.ttft is not None)
        axes.step(times, (np.arange(len(times)) + 1) / max(1, len(measured)), where="post", label=name)
    axes.set(xscale="log", xlabel="TTFT, s", ylabel="share of requests", ylim=(0, 1.01), title="Routing policies")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=22.0, help="of arrivals in a run")
    parser.add_argument("--rate", type=float, help="sessions/s; default: --share of what round robin serves")
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=400, help="of 16 tokens of KV a replica")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--input", default="uniform:60:240", help="tokens that a turn adds")
    parser.add_argument("--output", default="16")
    parser.add_argument("--turns", default="uniform:2:5")
    parser.add_argument("--think", type=float, default=1.5)
    parser.add_argument("--shared", type=int, default=300, help="tokens of a group's system prompt")
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
    config = {
        "pools": [small_pool(asked.model, setup.replicas, setup.blocks)],
        "health": {"check_timeout": 10, "hang_seconds": 60},
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-routing-") as scratch:
        try:
            with fleet(config, Path(scratch)) as running:
                bench, rate = asyncio.run(measure(setup, running, asked.rate, asked.share))
        except Absent as error:
            sys.exit(str(error))
    load = setup.load(rate, 0)
    facts += [
        ("command", shlex.join(["python", *sys.argv])),
        ("fleet", f"{setup.replicas} replicas of {asked.model}, one thread and {setup.blocks * 16} tokens of KV each"),
        ("load", f"{load.description}, think {asked.think:g} s; {len(load.sessions)} sessions a run, the first eighth not measured"),
        ("took", f"{time.monotonic() - started:.0f} s"),
    ]  # fmt: skip
    body = table(bench)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.plot:
        plot(bench, asked.plot)
        body += (
            f"\n\nTTFT by policy: ![TTFT by policy]({asked.plot.name if asked.append is None else _beside(asked)})"
        )
    if asked.append:
        append(asked.append, f"Routing, {facts[0][1][:10]}", facts, body)


def _beside(asked: argparse.Namespace) -> str:
    """The plot's path as seen from the page that shows it."""
    plot_path: Path = asked.plot
    return (
        str(plot_path.resolve().relative_to(asked.append.resolve().parent, walk_up=True))
        if sys.version_info >= (3, 12)
        else plot_path.name
    )


if __name__ == "__main__":
    main()
