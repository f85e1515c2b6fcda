"""`shoal simulate`: what a load does to a fleet, in virtual time, with the objects that the real gateway runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.bench_options import (
    Amount,
    Goal,
    LengthsOf,
    Output,
    Pace,
    Trace,
    UsageError,
    grouped,
    reproduction,
    workload_of,
)
from shoal.cli.simulate import fitting
from shoal.cli.simulate.fleets import fleet_of, trace_block
from shoal.cli.simulate.machines import Made
from shoal.cli.simulate.options import Replicas, Seeds, Virtual
from shoal.cli.simulate.progress import ticker
from shoal.cli.simulate.study import Outcome, Study
from shoal.cli.simulate.written import Finished, write

if TYPE_CHECKING:
    from shoal.workload.load import Load
    from shoal.workload.options import WorkloadOptions
    from shoal.workload.report.document import Section
    from shoal.workload.run import RunOptions

_DEFAULT = "run"
_WHOLE_TRACE = 100_000_000

FleetFile = Annotated[Path | None, typer.Argument(help="fleet.yaml, or what `shoal plan --json` prints.")]


class _RunFirst(typer.core.TyperGroup):
    """`shoal simulate …` is `shoal simulate run …`: what is no subcommand is a file or an option of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunFirst,
    add_completion=False,
    no_args_is_help=True,
    help="Simulate a load on a fleet in virtual time: latency, goodput, hits, causes.",
)


app.command("fit")(fitting.fit)
app.command("score")(fitting.score)


@app.command(
    _DEFAULT,
    epilog="Further commands: shoal simulate compare A B, two fleets over seeds; sweep, the highest rate within "
    "objectives; fit RUNS, step times from measured runs; score RUN, how well a replay of it agrees.",
)
@grouped
def run(
    replicas: Replicas,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    pace: Pace,
    goal: Goal,
    virtual: Virtual,
    seeds: Seeds,
    output: Output,
    fleet: FleetFile = None,
) -> None:
    """Simulate one load on one fleet.

    The fleet: --model, --gpu and --replicas, or a file. The load: --trace, --rate (open loop) or --concurrency.
    """
    from shoal.sim.figures import across
    from shoal.sim.writeup import DRAWN, WIDENED, detail_sections, meanings, run_section

    made = fleet_of(fleet, replicas, trace_block(trace))
    described = _described(made, lengths, trace, amount, pace)
    if described.trace is not None and seeds.seeds > 1:
        raise UsageError(f"--seeds {seeds.seeds}: a trace is the same load for every seed; expected 1")
    with ticker() as show:
        study = Study(goal.objectives(), virtual, show, amount.seed)
        load, options = _workload(described)
        moves = study.moves(made.fleet, load, options)
        outcomes: list[Outcome] = []
        for seed in range(amount.seed, amount.seed + seeds.seeds):
            drawn = load if seed == amount.seed else _workload(replace(described, seed=seed))[0]
            title = "Result" if seeds.seeds == 1 else f"seed {seed}"
            outcomes.append(study.simulate(made.fleet, drawn, options, title, seed))
        figures = across([o.figures for o in outcomes])
        figures = figures if moves is None else moves.widen(figures)
    first = outcomes[0]
    slow = study.slow(first)
    sections = [
        run_section(o.simulated, o.summary, figures if i == 0 else o.figures, title, o.warnings, amount.seed + i)
        for i, (o, title) in enumerate(zip(outcomes, (r.run for r in study.recorded), strict=True))
    ]
    details = detail_sections(first.simulated, first.summary, slow)
    sections = [_with_notes(sections[0], made), *details, *sections[1:]]
    explained = meanings(DRAWN if moves is None else WIDENED, bool(slow))
    report = study.report("Shoal simulate", _command(amount.seed), [made], sections, explained)
    write(Finished(report, study, outcomes, figures, slow), output)


@app.command()
@grouped
def sweep(
    replicas: Replicas,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    goal: Goal,
    virtual: Virtual,
    output: Output,
    fleet: FleetFile = None,
    start: Annotated[float, typer.Option(help="Rate to begin at, sessions per second.")] = 1.0,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the bracket is this narrow, as a share of the rate.")
    ] = 0.1,
    tries: Annotated[int, typer.Option(min=1, help="Rates tried at most.")] = 16,
) -> None:
    """Find the highest rate that a fleet serves within the objectives."""
    from shoal.sim.study import sweep as find
    from shoal.sim.writeup import DRAWN, meanings, run_section
    from shoal.workload.summary import Summary
    from shoal.workload.sweep import RateSearch
    from shoal.workload.writeup import sweep_section

    if goal.ttft is None and goal.tpot is None and goal.e2e is None:
        raise UsageError("sweep needs an objective: --ttft, --tpot or --e2e, in milliseconds")
    made = fleet_of(fleet, replicas, trace_block(trace))
    described = _described(made, lengths, trace, amount, Pace(rate=start))
    sections = []
    with ticker() as show:
        study = Study(goal.objectives(), virtual, show, amount.seed)

        def probe(rate: float, number: int) -> Summary:
            load, options = _workload(described, rate, f"point{number}")
            title = f"{rate:.4g}/s"
            found = study.simulate(made.fleet, load, options, title)
            sections.append(run_section(found.simulated, found.summary, found.figures, title, found.warnings))
            return found.summary

        found = find(probe, RateSearch(start, tolerance, tries))
    answer = sweep_section("The highest rate within objectives", found, f"Objectives: {study.objectives}")
    report = study.report(
        "Shoal simulate: sweep", _command(amount.seed), [made], [answer, *sections], meanings(DRAWN, False)
    )
    write(Finished(report, study, results=found), output)


@app.command()
@grouped
def compare(
    replicas: Replicas,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    pace: Pace,
    goal: Goal,
    virtual: Virtual,
    output: Output,
    a: Annotated[str, typer.Argument(help="A file, or settings over the options: replicas=8,router=kv.")],
    b: Annotated[str, typer.Argument(help="Likewise.")],
    rounds: Annotated[
        int, typer.Option(min=1, help="Loads that both are given: seeds in a row, or parts of a trace.")
    ] = 6,
) -> None:
    """Compare two fleets under the same loads, over seeds: ratios with intervals."""
    from shoal.sim.study import compare as paired
    from shoal.sim.writeup import DRAWN, meanings, run_section
    from shoal.workload.compare import Side
    from shoal.workload.load import part
    from shoal.workload.options import options_of
    from shoal.workload.summary import Summary
    from shoal.workload.writeup import comparison_section

    fleets = {name: _side(text, replicas, trace_block(trace)) for name, text in (("A", a), ("B", b))}
    described = _described(fleets["A"], lengths, trace, amount, pace)
    sections = []
    with ticker() as show:
        study = Study(goal.objectives(), virtual, show, amount.seed)

        whole = None if described.trace is None or rounds == 1 else _workload(described)[0]

        def side(which: Side, number: int) -> Summary:
            seed = amount.seed + number
            if whole is None:
                load, options = _workload(replace(described, seed=seed))
                title = f"{which}, seed {seed}"
            else:
                load, options = part(whole, number, rounds), options_of(described)
                title = f"{which}, part {number + 1}"
            found = study.simulate(fleets[which].fleet, load, options, title, seed)
            sections.append(run_section(found.simulated, found.summary, found.figures, title, found.warnings))
            return found.summary

        found = paired(side, rounds)
    drawn = "with seeds in a row" if whole is None else "of consecutive parts of the trace, caches empty"
    how = f"{drawn}, the same requests for both sides of a round"
    every = [_with_notes(comparison_section(found, how), *fleets.values()), *sections]
    report = study.report(
        "Shoal simulate: B against A", _command(amount.seed), list(fleets.values()), every, meanings(DRAWN, False)
    )
    write(Finished(report, study, results=found), output)


def _side(text: str, options: Replicas, block: int | None) -> Made:
    """One side of a comparison: a file, or settings over the options of the command line."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json") or path.exists():
        return fleet_of(path, options, block)
    return fleet_of(None, options.changed(text), block)


def _with_notes(section: Section, *fleets: Made) -> Section:
    """The section, with where the simulation of the fleets differs from them."""
    notes = dict.fromkeys(note for made in fleets for note in made.notes)
    return replace(section, notes=(*section.notes, *(f"as simulated, {note}" for note in notes)))


def _described(made: Made, lengths: LengthsOf, trace: Trace, amount: Amount, pace: Pace) -> WorkloadOptions:
    """The load: of the options, or of the plan that the fleet was made from."""
    default = LengthsOf()
    if made.input is not None and made.output is not None and trace.trace is None:
        lengths = replace(
            lengths,
            input=made.input if lengths.input == default.input else lengths.input,
            output=made.output if lengths.output == default.output else lengths.output,
        )
    if made.users is not None and pace == Pace() and trace.trace is None:
        pace = Pace(concurrency=round(made.users))
    return workload_of(lengths, trace, amount, pace)


def _workload(described: WorkloadOptions, rate: float | None = None, name: str = "") -> tuple[Load, RunOptions]:
    from shoal.workload.options import workload

    if described.trace is not None and described.requests is None and described.concurrency is None:
        described = replace(described, requests=_WHOLE_TRACE)
    return workload(described, rate, name)


def _command(seed: int) -> str:
    arguments = sys.argv[1:]
    typed = arguments[1:] if arguments[:1] == ["simulate"] else arguments
    return reproduction(["simulate", *typed], seed)
