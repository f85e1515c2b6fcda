"""Expert rows in two halves, one under way while the other is computed, against rows sent whole, over links.

    python benchmarks/expert_overlap.py [--quick] [--append benchmarks/results/expert_overlap.md]    (as root)

A mixture in the shape of DeepSeek-V3, small, random weights, over two hosts (ep=2, one thread each), which are
network namespaces joined by a link of a set bandwidth and delay. `off`, `on` and `auto`, which has measured at
start-up over the link that it then uses, take turns on the same prompts. Tokens are the same in every run.
"""

import argparse
import contextlib
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from expert_balance import VOCAB, write_model
from machine import append, describe
from peers.engines import free_port
from wire.hosts import Hosts, Unavailable, Wire, hosts
from wire.seats import Seat, SeatFailed, on_hosts

WIRES = (
    Wire("veth, unshaped", None, 0.0),
    Wire("1 Gbit/s, 0.1 ms", 125e6, 0.1e-3),
    Wire("100 Mbit/s, 1 ms", 12.5e6, 1e-3),
)
WAYS = ("off", "on", "auto")
ENGINE = {"ep": 2, "dtype": "float32", "num_blocks": 400, "max_num_seqs": 64, "max_num_batched_tokens": 512,
          "threads": 1, "prefix_caching": False, "rank_timeout": 60.0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked for."""

    name: str
    prompts: list[list[int]]
    new: int

    @property
    def tokens(self) -> int:
        """Rows that are computed: the last token of an answer is not."""
        return sum(len(prompt) + self.new - 1 for prompt in self.prompts)


@dataclass(slots=True)
class Cell:
    """One way over one link at one kind of work."""

    rates: list[float] = field(default_factory=list)
    """Tokens computed a second, prompts' included."""
    digests: set[str] = field(default_factory=set)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


Cells = dict[tuple[str, str, str], Cell]
"""By link, work and way."""


def works(quick: bool) -> list[Work]:
    """Many rows a step, and few."""
    streams, length = (8, 64) if quick else (16, 256)

    def prompt(stream: int, tokens: int) -> list[int]:
        return [3 + (17 * stream + 7 * i + i * i) % (VOCAB - 3) for i in range(tokens)]

    return [
        Work(f"{streams} prompts of {length}", [prompt(s, length) for s in range(streams)], 1),
        Work(f"{streams} streams decoding", [prompt(s, 4) for s in range(streams)], 8 if quick else 32),
    ]


def measure(
    two: Hosts, wire: Wire, model: str, asked: Sequence[Work], rounds: int, logs: Path, cells: Cells
) -> None:
    with contextlib.ExitStack() as stack:
        two.use(wire)
        seats: dict[str, Seat] = {}
        for way in WAYS:
            name = f"{way}-{len(cells)}"
            options = {**ENGINE, "overlap": way}
            seat = on_hosts(two, name, model, options, (0, 1), free_port(), logs / f"{name}.log")
            stack.callback(seat.close)
            # One after the other: what `auto` measures is not to be another's start-up.
            seat.ready()
            seats[way] = seat
        for turn in range(1 + rounds):
            for work in asked:
                for way, seat in seats.items():
                    run = seat.generate(work.prompts, work.new)
                    cell = cells.setdefault((wire.name, work.name, way), Cell())
                    cell.digests.add(run.digest)
                    if turn:  # the first warms up
                        cell.rates.append(work.tokens / run.seconds)


def table(cells: Cells, asked: Sequence[Work], wires: Sequence[Wire]) -> str:
    out = [
        "| link | work | off, tokens/s | on | auto | on ÷ off | auto ÷ off |",
        "|---|---|---|---|---|---|---|",
    ]
    for wire in wires:
        for work in asked:
            off, on, auto = (cells[wire.name, work.name, way].rate for way in WAYS)
            rates = f"{off:.0f} | {on:.0f} | {auto:.0f} | {on / off:.2f} | {auto / off:.2f}"
            out.append(f"| {wire.name} | {work.name} | {rates} |")
    same = all(
        len({d for way in WAYS for d in cells[wire.name, work.name, way].digests}) == 1
        for wire in wires
        for work in asked
    )
    return "\n".join(out) + f"\n\nTokens the same in all runs: {'yes' if same else 'NO'}."


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of little work")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    return parser.parse_args()


def main() -> None:
    given = options()
    rounds, asked = (1 if given.quick else given.rounds), works(given.quick)
    facts = [*describe(), ("command", shlex.join(["python", *sys.argv]))]
    cells: Cells = {}
    try:
        with tempfile.TemporaryDirectory() as name, hosts() as two:
            model = Path(name) / "model"
            model.mkdir()
            write_model(model, 0.0)
            for wire in WIRES:
                measure(two, wire, str(model), asked, rounds, Path(name), cells)
                print(table({k: v for k, v in cells.items() if k[0] == wire.name}, asked, [wire]), flush=True)
    except (Unavailable, SeatFailed) as error:
        sys.exit(f"error: {error}")
    body = table(cells, asked, WIRES)
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if given.append:
        append(given.append, f"Expert rows under way while others are computed, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
