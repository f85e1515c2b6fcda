"""Tensor against pipeline parallelism over links of several speeds, measured, beside what `plan/` says beforehand.

    python benchmarks/topology.py [--quick] [--append docs/topology.md] [--plot docs/img/topology.svg]    (as root)

Ranks of one replica of SmolLM2-135M, one thread each, lie on two hosts, which are network namespaces; between them
lies a link of a set bandwidth (tbf) and delay (a relay of packets in user space). The first link of all is shared
memory on one host. All layouts of a link take turns; tokens/s are those of steps that only decode.

The prediction (crossing.py) knows the time of a step on one rank, by rows, that of a model equally deep and
almost without width, and each link as the collectives see it: it has seen no layout's own time. One measurement of
the step is made beside each link, because a shared machine drifts.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossing import Decoding, MeasuredLink, MeasuredStep, Site, decoding
from machine import append, describe
from peers.engines import free_port
from shoal.engine.parallel.shm_layout import SegmentLayout, anonymous_segment
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from wire.hosts import Hosts, Unavailable, Wire, hosts
from wire.seats import Seat, SeatFailed, command, on_hosts
from wire.thin import write_thin

PROBE = Path(__file__).with_name("wire") / "probe.py"
SHARED = "shared memory, one host"
WIRES = (
    Wire("veth, unshaped", None, 0.0),
    Wire("1 Gbit/s, 0.1 ms", 125e6, 0.1e-3),
    Wire("100 Mbit/s, 1 ms", 12.5e6, 1e-3),
    Wire("20 Mbit/s, 5 ms", 2.5e6, 5e-3),
)
LAYOUTS = {"tp2": Layout(tp=2), "pp2": Layout(pp=2), "tp2 pp2": Layout(tp=2, pp=2)}
PLACES = {"tp2": (0, 1), "pp2": (0, 1), "tp2 pp2": (0, 0, 1, 1)}
"""Host of each rank: tensor parallelism inside a host where a host holds its ranks."""
ENGINE = {"dtype": "float32", "num_blocks": 400, "max_model_len": 512, "max_num_seqs": 64, "threads": 1,
          "prefix_caching": False, "rank_timeout": 60.0}  # fmt: skip
PROMPT = 4
"""Tokens; decoding is what is measured."""
CLOSE = 0.05
"""Rates nearer to each other than this share are a tie."""


@dataclass(slots=True)
class Cell:
    """One layout on one link at one number of streams."""

    rates: list[float] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    predicted: Decoding | None = None

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


@dataclass(slots=True)
class Row:
    """One link."""

    name: str
    cells: dict[tuple[str, int], Cell]
    link: MeasuredLink
    inside: MeasuredLink
    step: MeasuredStep


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    model: str
    spec: ModelSpec
    layouts: tuple[str, ...]
    streams: tuple[int, ...]
    rounds: int
    new: int
    logs: Path


def prompts(streams: int) -> list[list[int]]:
    return [[1000 + 37 * stream + 11 * i for i in range(PROMPT)] for stream in range(streams)]


class Baseline:
    """One rank with one thread, twice, and a model with depth only: what the prediction knows of computing."""

    def __init__(self, plan: Plan, stack: contextlib.ExitStack) -> None:
        self._plan = plan
        thin = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "thin"
        write_thin(thin, plan.spec)
        self._seats = [here(plan, stack, f"one rank {i}", plan.model, {}) for i in (0, 1)]
        self._thin = here(plan, stack, "thin", str(thin), {})
        for seat in (*self._seats, self._thin):
            seat.ready()
        self.digests: dict[int, str] = {}
        self.step = self.measure()

    def measure(self) -> MeasuredStep:
        plan = self._plan
        rows = sorted({-(-s // m) for s in plan.streams for m in (1, 2)})
        known = [(n, n / rate(self._one(n))) for n in rows]
        fixed = 1 / rate([self._thin.generate([[7, 8, 9, 10]], plan.new).rate for _ in range(2)])
        for seat in self._seats:
            seat.ask({"prompts": prompts(rows[-1]), "new": plan.new})
        both = rows[-1] / rate([seat.run().rate for seat in self._seats])
        alone = known[-1][1]
        return MeasuredStep(known, min(fixed, known[0][1] / 2), max(1.0, both / alone))

    def _one(self, streams: int) -> list[float | None]:
        runs = [self._seats[0].generate(prompts(streams), self._plan.new) for _ in range(2)]
        self.digests[streams] = runs[0].digest
        return [run.rate for run in runs]


def rate(measured: Sequence[float | None]) -> float:
    """The best of a few: what disturbs a run on a shared machine only slows it."""
    return max(r for r in measured if r is not None)


def here(plan: Plan, stack: contextlib.ExitStack, name: str, model: str, options: Mapping[str, object]) -> Seat:
    line = command(model, {**ENGINE, **options})
    seat = Seat.here(name, line, plan.logs / f"{name}.log", {"OMP_NUM_THREADS": "1"})
    stack.callback(seat.close)
    return seat


def degrees(layout: Layout) -> dict[str, object]:
    return {"tp": layout.tp, "pp": layout.pp}


def measure_row(
    plan: Plan, name: str, seats: Mapping[str, Seat], baseline: Baseline, link: MeasuredLink, inside: MeasuredLink
) -> Row:
    """All layouts at all numbers of streams over the link as it is now, in turn, and the plan's word on each."""
    step = baseline.measure()
    row = Row(name, {}, link, inside, step)
    for streams in plan.streams:
        for number in range(plan.rounds + 1):
            order = list(seats)
            turn = number % len(order)
            for label in order[turn:] + order[:turn]:
                run = seats[label].generate(prompts(streams), plan.new)
                cell = row.cells.setdefault((label, streams), Cell())
                cell.digests.add(run.digest)
                if number and run.rate is not None:  # the first warms up
                    cell.rates.append(run.rate)
        for label in seats:
            layout = LAYOUTS[label]
            per_host = layout.world if name == SHARED else layout.world // 2
            site = Site(per_host, inside, link, len(os.sched_getaffinity(0)))
            cell = row.cells[label, streams]
            cell.predicted = decoding(plan.spec, layout, streams, step, site)
            same = "same tokens" if cell.digests == {baseline.digests[streams]} else "TOKENS DIFFER"
            print(
                f"  {name:24} {streams:3} streams  {label:8} {cell.rate:8.1f} tokens/s, "
                f"predicted {cell.predicted.rate:8.1f}  {same}",
                flush=True,
            )
    return row


def ask_link(pair: Sequence[Seat]) -> MeasuredLink:
    for seat in pair:
        seat.ask("go")
    first, _ = (seat.answer(120) for seat in pair)
    return MeasuredLink(**first)


def on_one_host(plan: Plan, baseline: Baseline) -> Row:
    """Ranks in shared memory."""
    with contextlib.ExitStack() as stack:
        fd = anonymous_segment("probe", SegmentLayout(2).size)
        stack.callback(os.close, fd)
        pair = []
        for index in (0, 1):
            line = [sys.executable, str(PROBE), "shm", str(index), f"/proc/{os.getpid()}/fd/{fd}"]
            pair.append(Seat.here(f"probe {index}", line, plan.logs / f"probe-{index}.log"))
            stack.callback(pair[-1].close)
        link = ask_link(pair)
        seats = {n: here(plan, stack, n, plan.model, degrees(LAYOUTS[n])) for n in plan.layouts}
        for seat in seats.values():
            seat.ready()
        return measure_row(plan, SHARED, seats, baseline, link, link)


def on_two_hosts(plan: Plan, baseline: Baseline, wires: Sequence[Wire]) -> Iterator[Row]:
    """Ranks in two namespaces, all layouts loaded at once and the link changed under them."""
    with hosts() as two:
        two.use(Wire("loading", None, 0.0))
        seats = {
            name: on_hosts(
                two, name, plan.model, {**ENGINE, **degrees(LAYOUTS[name])}, PLACES[name], free_port(),
                plan.logs / f"hosts-{name}.log",
            )
            for name in plan.layouts
        }  # fmt: skip
        across, inside = (probes(plan, two, places) for places in ((0, 1), (0, 0)))
        for seat in seats.values():
            seat.ready()
        near = ask_link(inside)
        for wire in wires:
            two.use(wire)
            yield measure_row(plan, wire.name, seats, baseline, ask_link(across), near)


def probes(plan: Plan, two: Hosts, places: Sequence[int]) -> list[Seat]:
    """The two ends of a link, ready to measure it."""
    found, port = [], free_port()
    for index, place in enumerate(places):
        name = f"probe-{places[0]}{places[1]}-{index}"
        line = [sys.executable, str(PROBE), "gloo", str(index), two.addresses[places[0]], str(port)]
        log = plan.logs / f"{name}.log"
        environ = {"GLOO_SOCKET_IFNAME": two.interface, "OMP_NUM_THREADS": "1"}
        found.append(Seat(name, two.start(place, line, environ, log), log))
    return found


def winner(row: Row, streams: int, predicted: bool) -> str:
    """`tp2`, `pp2` or `tie`."""
    found = {}
    for label in ("tp2", "pp2"):
        cell = row.cells[label, streams]
        assert cell.predicted is not None
        found[label] = cell.predicted.rate if predicted else cell.rate
    tp, pp = found["tp2"], found["pp2"]
    return "tie" if abs(math.log(tp / pp)) < CLOSE else "tp2" if tp > pp else "pp2"


def markdown(plan: Plan, rows: Sequence[Row]) -> str:
    """Rates measured and predicted, and the two winners."""
    out = []
    for streams in plan.streams:
        heads = [f"{label}: measured | predicted" for label in plan.layouts]
        out += [
            f"\n{streams} stream{'s' * (streams > 1)}, tokens/s:\n",
            f"| link | {' | '.join(heads)} | wins | plan says |",
        ]
        out.append("|---" * (2 * len(plan.layouts) + 3) + "|")
        for row in rows:
            cells = []
            for label in plan.layouts:
                cell = row.cells[label, streams]
                assert cell.predicted is not None
                low, high = min(cell.rates), max(cell.rates)
                cells += [f"{cell.rate:.1f} ({low:.1f}–{high:.1f})", f"{cell.predicted.rate:.1f}"]
            measured, predicted = winner(row, streams, False), winner(row, streams, True)
            out.append(f"| {row.name} | {' | '.join(cells)} | {measured} | {predicted} |")
    out += ["\nThe links as two ranks' collectives see them, and one rank's step beside them:\n"]
    heads = " | ".join(f"step of {n}" for n, _ in rows[0].step.seconds)
    out.append(f"| link | empty all-reduce | send, one way | bandwidth | {heads} | without width | both cores |")
    out.append("|---" * (6 + len(rows[0].step.seconds)) + "|")
    for row in rows:
        link = row.link
        cells = [
            row.name,
            *(f"{1e3 * s:.3f} ms" for s in (link.reduce, link.send)),
            f"{link.bandwidth / 1e6:,.1f} MB/s",
        ]
        cells += [f"{1e3 * s:.1f} ms" for _, s in row.step.seconds]
        cells += [f"{1e3 * row.step.fixed:.1f} ms", f"× {row.step.crowding:.2f}"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def verdict(plan: Plan, rows: Sequence[Row]) -> str:
    cells = [(winner(r, s, False), winner(r, s, True)) for r in rows for s in plan.streams]
    clear = [(m, p) for m, p in cells if m != "tie"]
    right = sum(m == p for m, p in clear)
    errors = [abs(c.predicted.rate / c.rate - 1) for r in rows for c in r.cells.values() if c.predicted is not None]
    same = all(len(r.cells[label, s].digests) == 1 for r in rows for label in plan.layouts for s in plan.streams)
    return (
        f"The plan names the winner of tp2 and pp2 in {right} of {len(clear)} cells that aren't ties "
        f"(within {CLOSE:.0%}); its rates are off by {statistics.median(errors):.0%} in the median. "
        f"Tokens are {'the same in every cell' if same else 'NOT the same everywhere'}."
    )


def plot(plan: Plan, rows: Sequence[Row], path: Path) -> None:
    """Rates by link, one panel a number of streams: measured as marks with their range, predicted as lines."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    matplotlib.rcParams.update({"svg.hashsalt": "shoal", "font.size": 9})
    figure, panels = pyplot.subplots(1, len(plan.streams), figsize=(4.6 * len(plan.streams), 3.8), squeeze=False)
    for panel, streams in zip(panels[0], plan.streams, strict=True):
        for label, color in zip(plan.layouts, ("#2563eb", "#ea580c", "#16a34a"), strict=False):
            cells = [row.cells[label, streams] for row in rows]
            at = range(len(rows))
            panel.plot(at, [c.predicted.rate for c in cells if c.predicted], "--", color=color, linewidth=1)
            spread = [[c.rate - min(c.rates) for c in cells], [max(c.rates) - c.rate for c in cells]]
            panel.errorbar(at, [c.rate for c in cells], spread, fmt="o", color=color, label=label, capsize=3)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        panel.set_xticks(list(range(len(rows))), [r.name.replace(", ", "\n") for r in rows], fontsize=7)
        panel.set_title(f"{streams} stream{'s' * (streams > 1)}")
        panel.grid(True, which="both", alpha=0.25)
    panels[0][0].set_ylabel("tokens/s (marks measured, dashes predicted)")
    panels[0][0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", default="1,8", help="comma-separated")
    parser.add_argument("--layouts", default="tp2,pp2,tp2 pp2", help="tp2 and pp2 are always run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=24, help="new tokens of a stream")
    parser.add_argument("--quick", action="store_true", help="one round, few tokens, no tp2 pp2")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "shoal-topology")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    parser.add_argument("--plot", type=Path, help="SVG file")
    return parser.parse_args()


def main() -> None:
    from shoal.engine.sources import resolve_model

    asked = options()
    asked.logs.mkdir(parents=True, exist_ok=True)
    if asked.quick:
        asked.rounds, asked.new, asked.layouts = 1, 10, "tp2,pp2"
    names = tuple(dict.fromkeys(["tp2", "pp2", *asked.layouts.split(",")]))
    streams = tuple(int(s) for s in asked.streams.split(","))
    path = resolve_model(asked.model).path
    plan = Plan(asked.model, load_model_spec(path), names, streams, asked.rounds, asked.new, asked.logs)
    facts = describe()
    facts.append(("command", shlex.join(["python", *sys.argv])))
    facts.append(("work", f"{PROMPT}-token prompts, {plan.new} new tokens, greedy, fp32, one thread a rank"))
    rows: list[Row] = []
    try:
        with contextlib.ExitStack() as stack:
            baseline = Baseline(plan, stack)
            rows.append(on_one_host(plan, baseline))
            rows.extend(on_two_hosts(plan, baseline, WIRES))
    except (SeatFailed, Unavailable) as error:
        print(f"topology: {error}", file=sys.stderr)
        sys.exit(1)
    body = markdown(plan, rows) + "\n\n" + verdict(plan, rows)
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n" + body)
    (asked.logs / "rows.json").write_text(
        json.dumps(
            [{"link": r.name, "rates": {f"{k[0]} x {k[1]}": c.rates for k, c in r.cells.items()}} for r in rows]
        )
    )
    if asked.plot:
        plot(plan, rows, asked.plot)
    if asked.append:
        append(asked.append, f"Topology, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
