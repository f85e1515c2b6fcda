"""SmolLM2 on two cores: one rank with two threads against two ranks with one, by tensor and by pipeline.

    python benchmarks/parallel.py [--quick] [--append benchmarks/results/parallel.md]

All layouts are loaded at once and take turns on the same prompts; tokens/s are all new tokens ÷ seconds, prompts
included, and beside it those of the steps that only decode. Then, where the time of each layout's ranks goes:
computing, waiting in a collective or for a hand-over, or between steps (scheduling, commands and results on their
way, sampling elsewhere). Ratios are geometric means of the rounds' with Student's 95 % interval.
"""

import argparse
import contextlib
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from machine import append, describe, ratio
from wire.seats import Run, Seat, SeatFailed, command

ONE = "one rank, 2 threads"
LAYOUTS: Mapping[str, Mapping[str, int]] = {
    ONE: {"threads": 2},
    "tp=2": {"tp": 2, "threads": 1},
    "pp=2": {"pp": 2, "threads": 1},
}
ENGINE = {"dtype": "float32", "kv_memory": 2**29, "max_model_len": 2048, "max_num_seqs": 64}
FIRST_PLAIN, VOCABULARY = 20, 49_000


@dataclass(slots=True)
class Cell:
    """One layout at one number of streams."""

    runs: list[Run] = field(default_factory=list)

    @property
    def all_in(self) -> list[float]:
        return [run.tokens / run.seconds for run in self.runs]

    @property
    def decoding(self) -> list[float]:
        return [run.rate for run in self.runs if run.rate is not None]


Cells = dict[tuple[str, int], Cell]


def prompts(length: int, streams: int, number: int) -> list[list[int]]:
    """Random ids, the same for every layout in a round, different in every round."""
    rng = np.random.default_rng([0, streams, number])
    return rng.integers(FIRST_PLAIN, VOCABULARY, size=(streams, length)).tolist()


def measure(seats: Mapping[str, Seat], asked: argparse.Namespace, streams: Sequence[int]) -> Cells:
    cells: Cells = {(name, count): Cell() for name in seats for count in streams}
    for count in streams:
        for number in range(asked.rounds + 1):
            order = list(seats)
            turn = number % len(order)
            for name in order[turn:] + order[:turn]:
                new = 8 if number == 0 else asked.new  # the first warms up and isn't counted
                run = seats[name].generate(prompts(asked.prompt, count, number), new)
                if number:
                    cells[name, count].runs.append(run)
                    print(
                        f"  {count:3} streams, round {number}: {name:20} {run.tokens / run.seconds:8.1f} tokens/s",
                        flush=True,
                    )
    return cells


def rates(cells: Cells, streams: Sequence[int]) -> str:
    others = [name for name in LAYOUTS if name != ONE]
    heads = (
        [f"{n}, tokens/s" for n in LAYOUTS]
        + [f"{n} ÷ one" for n in others]
        + [f"{n} ÷ one, decoding" for n in others]
    )
    out = [f"| streams | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for count in streams:
        row = [f"{np.mean(cells[name, count].all_in):.1f}" for name in LAYOUTS]
        row += [ratio(cells[n, count].all_in, cells[ONE, count].all_in) for n in others]
        row += [ratio(cells[n, count].decoding, cells[ONE, count].decoding) for n in others]
        out.append(f"| {count} | {' | '.join(row)} |")
    return "\n".join(out)


def losses(cells: Cells, streams: Sequence[int]) -> str:
    """Shares of the run's time, for each rank."""
    out = [
        "| streams | rank | computing | waiting for ranks | between steps | computing, ms a step |",
        "|---|---|---|---|---|---|",
    ]
    for count in streams:
        for name in LAYOUTS:
            runs = cells[name, count].runs
            whole = sum(run.seconds for run in runs)
            for index in range(len(runs[0].ranks)):
                mine = [run.ranks[index] for run in runs]
                inside, waited = sum(r.seconds for r in mine), sum(r.waited for r in mine)
                shares = ((inside - waited) / whole, waited / whole, 1 - inside / whole)
                each = 1e3 * (inside - waited) / sum(r.steps for r in mine)
                label = f"{name}: {mine[0].name}"
                out.append(f"| {count} | {label} | {' | '.join(f'{s:.0%}' for s in shares)} | {each:.1f} |")
    return "\n".join(out)


def same_tokens(cells: Cells, streams: Sequence[int]) -> str:
    different = [
        f"{name} at {count} streams"
        for count in streams
        for name in LAYOUTS
        if [r.digest for r in cells[name, count].runs] != [r.digest for r in cells[ONE, count].runs]
    ]
    if not different:
        return "Every layout gave the same tokens."
    return (
        "Tokens differ from one rank's (sums round otherwise over ranks, and random prompts have near-ties): "
        + (", ".join(different) + ".")
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", default="1,8,32", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="new tokens")
    parser.add_argument("--quick", action="store_true", help="one round, short")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "shoal-parallel")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    return parser.parse_args()


def main() -> None:
    asked = options()
    asked.logs.mkdir(parents=True, exist_ok=True)
    if asked.quick:
        asked.rounds, asked.prompt, asked.new = 1, 16, 16
    streams = [int(s) for s in asked.streams.split(",")]
    facts = describe()
    facts.append(("command", shlex.join(["python", *sys.argv])))
    facts.append(("work", f"{asked.prompt}-token random prompts, {asked.new} new tokens, greedy, fp32"))
    try:
        with contextlib.ExitStack() as stack:
            seats: dict[str, Seat] = {}
            for name, layout in LAYOUTS.items():
                line = command(asked.model, {**ENGINE, **layout})
                environ = {"OMP_NUM_THREADS": str(layout["threads"])}
                seats[name] = Seat.here(name, line, asked.logs / f"{name}.log", environ)
                stack.callback(seats[name].close)
            for seat in seats.values():
                seat.ready()
            cells = measure(seats, asked, streams)
    except SeatFailed as error:
        print(f"parallel: {error}", file=sys.stderr)
        sys.exit(1)
    shares = losses(cells, streams)
    body = "\n\n".join((rates(cells, streams), "Where time goes:", shares, same_tokens(cells, streams)))
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Two ranks against two threads, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
