"""Tokens a second of one model: Shoal beside vLLM, Transformers and llama.cpp, interleaved in one run.

    python benchmarks/throughput.py [--streams 1,8,32,64] [--rounds 5] [--mode offline,http,prefill]
                                    [--quantize int8,int4] [--model random-1.5b] [--quick] [--append FILE]

Offline: `streams` prompts of random tokens are handed over at once; tokens/s is all new tokens ÷ seconds until
the last one, prefill included. Prefill: the same with one new token each, and tokens/s are those of the prompts.
HTTP: as many streaming requests at once, from `shoal bench`; tokens/s as offline.
Every round runs every engine once with the same prompts (new ones each round), in an order that turns. Ratios
are geometric means of the rounds' ratios with Student's 95 % interval, to each peer and to the best of a round. An
engine that isn't there is named and left out.

Shoal runs in float32 and with the weights that --quantize names, then with an eight-bit KV cache; llama.cpp with
the GGUF as it is (Q4_1) and with the same weights as Q8_0, and its own default cache of 16 bits.

Peers are found by options or environment: BENCH_VLLM_PYTHON, BENCH_LLAMACPP_PYTHON (an interpreter each).
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from machine import append, describe, ratio
from peers.convert import as_q8_0, as_safetensors, as_w8a8
from peers.engines import KINDS, WEIGHTS, Absent, Kind, Offline, Served, Setting, program, scheme
from peers.shapes import SHAPES, as_gguf, as_mixtral
from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.workload.lengths import LengthDraw
from shoal.workload.load import Shape, at_times, made_up
from shoal.workload.run import RunOptions

VOCABULARY = 49_000
"""Ids below SmolLM2's 49,152, its special tokens (the first twenty) left out."""
FIRST_PLAIN = 20
WARMING = 8
"""New tokens of a pass that isn't measured."""
HTTP = ("shoal", "vllm", "llamacpp")
"""Programs that have a server here."""

Measure = Callable[[int, int], float]
"""(streams, round) → tokens a second."""


@dataclass(frozen=True, slots=True)
class Work:
    prompt: int
    new: int
    seed: int


@dataclass(slots=True)
class Table:
    """Rates by (engine, streams), one a round."""

    mode: str
    rates: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def prompts(work: Work, streams: int, number: int) -> list[list[int]]:
    """Random ids, the same for every engine in a round, different in every round."""
    rng = np.random.default_rng([work.seed, streams, number + 1])
    return rng.integers(FIRST_PLAIN, VOCABULARY, size=(streams, work.prompt)).tolist()


def new_tokens(work: Work, number: int) -> int:
    """A pass that only warms caches and allocators up needs few."""
    return work.new if number >= 0 else min(work.new, WARMING)


def prefill_measure(engine: Offline, work: Work) -> Measure:
    def measure(streams: int, number: int) -> float:
        seconds, _ = engine.generate(prompts(work, streams, number), 1)
        return streams * work.prompt / seconds

    return measure


def offline_measure(engine: Offline, work: Work) -> Measure:
    def measure(streams: int, number: int) -> float:
        new = new_tokens(work, number)
        seconds, tokens = engine.generate(prompts(work, streams, number), new)
        if tokens != streams * new:
            raise Absent(f"{engine.kind}: gave {tokens} tokens where {streams * new} were asked for")
        return tokens / seconds

    return measure


def http_measure(server: Served, work: Work) -> Measure:
    def measure(streams: int, number: int) -> float:
        return asyncio.run(_burst(server.url, work, streams, number))

    return measure


async def _burst(url: str, work: Work, streams: int, number: int) -> float:
    shape = Shape(LengthDraw("fixed", work.prompt), LengthDraw("fixed", new_tokens(work, number)))
    load = at_times(made_up(shape, streams, work.seed, f"{streams}/{number}"), "burst", 1.0, work.seed)
    async with await Target.open(TargetOptions(url, prompt_form="ids")) as target:
        done = await Runner(target, RunOptions(seed=work.seed)).run(load)
    failed = [r.error for r in done.records if not r.ok]
    if failed:
        raise Absent(f"{len(failed)} of {streams} requests failed: {failed[0]}")
    return sum(r.output_tokens for r in done.records) / max(r.ended for r in done.records)


def run(mode: str, engines: dict[Kind, Measure], streams: Sequence[int], rounds: int) -> Table:
    """All rounds. An engine that fails is dropped, with its reason, from then on."""
    table = Table(mode)
    for count in streams:
        for number in range(-1, rounds):
            order = list(engines)
            turn = number % max(1, len(order))
            for kind in order[turn:] + order[:turn]:
                if kind in table.lost:
                    continue
                try:
                    rate = engines[kind](count, number)
                except Absent as error:
                    table.lost[kind] = str(error)
                    continue
                # The first pass of a size warms caches and allocators up and doesn't count.
                if number >= 0:
                    table.rates.setdefault((kind, count), []).append(rate)
                    print(
                        f"  {mode} {count:3} streams, round {number + 1}: {kind:<13} {rate:8.1f} tokens/s",
                        flush=True,
                    )
    return table


def markdown(table: Table, streams: Sequence[int]) -> str:
    """Rates, and the ratios of each of Shoal's to each peer and to the best of them."""
    kinds = [k for k in KINDS if any((k, s) in table.rates for s in streams)]
    own, peers = [k for k in kinds if program(k) == "shoal"], [k for k in kinds if program(k) != "shoal"]
    what = "prompt tokens/s" if table.mode == "prefill" else "tokens/s"
    lines = [f"{table.mode}, {what} (mean of rounds):\n"]
    lines += _rows(
        [f"{k} ({WEIGHTS[k]})" for k in kinds],
        {n: [f"{np.mean(r):.1f}" if (r := table.rates.get((k, n))) else "–" for k in kinds] for n in streams},
    )
    if own and peers:
        names = [f"{o} ÷ {p}" for o in own for p in (*peers, "best peer")]
        cells: dict[int, list[str]] = {}
        for count in streams:
            rates = {p: table.rates.get((p, count), []) for p in peers}
            best = [max(round_) for round_ in zip(*(r for r in rates.values() if r), strict=False)]
            cells[count] = [
                ratio(table.rates.get((o, count), []), other) for o in own for other in (*rates.values(), best)
            ]
        lines += ["\nRatios:\n", *_rows(names, cells)]
    lines += [f"\nLeft out: {kind}: {why}" for kind, why in table.lost.items()]
    return "\n".join(lines)


def _rows(names: Sequence[str], cells: dict[int, list[str]]) -> list[str]:
    head = [f"| streams | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return head + [f"| {count} | {' | '.join(row)} |" for count, row in cells.items()]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8,32,64", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds, 1 and 8 streams, 32 new tokens")
    parser.add_argument("--quantize", default="int8,int4", help="Shoal's weights besides float32; none: only that")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="new tokens")
    parser.add_argument("--mode", default="offline,prefill,http")
    parser.add_argument("--engines", default=",".join(KINDS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--model",
        default="smollm2-135m",
        help=f"a catalogued model that is a GGUF file, or of {', '.join(SHAPES)}: random weights of that shape",
    )
    parser.add_argument("--vllm-python", default=os.environ.get("BENCH_VLLM_PYTHON", "/opt/peers/vllm/bin/python"))
    llama = os.environ.get("BENCH_LLAMACPP_PYTHON", "/opt/peers/llamacpp/bin/python")
    parser.add_argument("--llamacpp-python", default=llama)
    parser.add_argument("--logs", type=Path, default=Path("/tmp/shoal-bench"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    asked = parser.parse_args()
    if asked.quick:
        asked.streams, asked.rounds, asked.new = "1,8", 2, 32
    return asked


def setting(asked: argparse.Namespace) -> Setting:
    from shoal.engine.sources import resolve_model

    asked.logs.mkdir(parents=True, exist_ok=True)
    peers = Path(asked.vllm_python), Path(asked.llamacpp_python)
    if asked.model in SHAPES:
        like = resolve_model("smollm2-135m").path
        four, eight = (as_gguf(asked.model, like, kind) for kind in ("Q4_1", "Q8_0"))
        plain = as_mixtral(asked.model, as_safetensors(like)) if SHAPES[asked.model].experts else None
        # Experts in a GGUF are no form that Shoal reads.
        own = four if plain is None else plain
        return Setting(four, plain or Path("none"), asked.threads, *peers, asked.logs, eight, own=own)
    gguf = resolve_model(asked.model).path
    # One that can't be made is a peer left out.
    q8: Path | None = None
    w8a8: Path | None = None
    with contextlib.suppress(ImportError, ValueError, OSError):
        q8 = as_q8_0(gguf)
    plain = as_safetensors(gguf)
    if "vllm-int8" in asked.engines.split(","):
        with contextlib.suppress(ImportError, ValueError, OSError):
            w8a8 = as_w8a8(plain)
    return Setting(gguf, plain, asked.threads, *peers, asked.logs, q8, w8a8)


def main() -> None:
    asked = options()
    shared, work = setting(asked), Work(asked.prompt, asked.new, asked.seed)
    streams = [int(s) for s in asked.streams.split(",")]
    schemes = asked.quantize.split(",")
    listed = [k for k in KINDS if k in asked.engines.split(",")]
    wanted: list[Kind] = [k for k in listed if (rounded := scheme(k)) is None or rounded in schemes]
    facts = describe()
    lost: dict[str, str] = {}
    tables = []
    for mode in asked.mode.split(","):
        with contextlib.ExitStack() as stack:
            engines: dict[Kind, Measure] = {}
            for kind in wanted if mode != "http" else [k for k in wanted if program(k) in HTTP]:
                try:
                    print(f"starting {kind} ({mode})", flush=True)
                    if mode != "http":
                        engine = Offline(kind, shared)
                        stack.callback(engine.close)
                        make = prefill_measure if mode == "prefill" else offline_measure
                        engines[kind] = make(engine, work)
                        versions = ", ".join(f"{n} {v}" for n, v in engine.facts.items())
                        facts.append((f"{kind} ({mode})", f"{versions}; loaded in {engine.load_seconds:.1f} s"))
                    else:
                        server = Served(kind, shared)
                        stack.callback(server.close)
                        engines[kind] = http_measure(server, work)
                except Absent as error:
                    lost[f"{kind} ({mode})"] = str(error)
                    print(f"left out: {error}", flush=True)
            tables.append(run(mode, engines, streams, asked.rounds))
    facts.append(("command", shlex.join(["python", *sys.argv])))
    facts.append(
        ("work", f"{work.prompt}-token random prompts, {work.new} new tokens, greedy, {asked.threads} threads")
    )
    body = "\n\n".join(markdown(t, streams) for t in tables)
    body += "".join(f"\n\nLeft out: {kind}: {why}" for kind, why in lost.items())
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Throughput, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
