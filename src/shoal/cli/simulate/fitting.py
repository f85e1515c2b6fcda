"""`shoal simulate fit` and `score`: step times from measured runs, and how well replays of runs agree with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.bench_options import UsageError, grouped
from shoal.cli.simulate.machines import planned
from shoal.cli.simulate.options import Replicas
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.plan.artifact import Artifact
    from shoal.sim.fit import StepFit
    from shoal.sim.hardware import PlannedReplica
    from shoal.sim.measured import MeasuredLog
    from shoal.sim.score import Score

_KINDS = ("ttft", "tpot", "e2e")
_ERRORS = ("mean_error", "p50_error", "p90_error", "p99_error", "coverage90")

Logs = Annotated[
    list[Path],
    typer.Argument(help="Folders with requests.jsonl and meta.json, or what shoal bench run --jsonl writes."),
]


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run, and the replica that answered it as the planner knows it."""

    log: MeasuredLog
    replica: PlannedReplica


def run_of(path: Path, options: Replicas) -> Run:
    """Read a run; options say what its files don't, and go before what they do."""
    from shoal.sim.measured import read_measured

    log = read_measured(path)
    layout = None if log.tp is None else f"tp={log.tp}"
    found = replace(
        options,
        model=options.model or log.model,
        gpu=options.gpu or log.hardware,
        layout=options.layout or layout,
        max_num_seqs=options.max_num_seqs or log.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or log.token_budget,
        max_model_len=options.max_model_len,
        block_size=options.block_size or log.block_size,
        kv_blocks=options.kv_blocks or log.num_blocks,
    )
    if found.model is None:
        raise SpecError("model", "", f"--model: {path} doesn't say which it is of")
    if found.gpu is None:
        raise SpecError("gpu", "", f"--gpu: {path} doesn't say on which it ran")
    return Run(log, planned(found))


def fitted(runs: Sequence[Run]) -> StepFit:
    """Fit one set of factors to runs, with a line of progress on a terminal."""
    from shoal.sim.fit import fit_steps, target_of

    shows = sys.stderr.isatty()

    def on_trial(trials: int, residual: float) -> None:
        if shows:
            sys.stderr.write(f"\rfitting: {trials} simulations, {residual:.1%} off ")
            sys.stderr.flush()

    try:
        return fit_steps([target_of(r.log, r.replica.scheduler, r.replica.prior) for r in runs], on_trial)
    finally:
        if shows:
            sys.stderr.write("\r\x1b[K")


def constants_of(runs: Sequence[Run], fit: StepFit, base: Artifact) -> Artifact:
    """A constants file: the factors for simulations, and what they come to in closed loops for the planner."""
    import msgspec

    from shoal.plan.artifact import StepFactors
    from shoal.plan.calibrate import rescale
    from shoal.sim.observed import observations

    first = runs[0].replica
    machine, engine = first.candidate.accelerator.name, first.candidate.engine.engine
    names = tuple(run.log.name for run in runs)
    found = StepFactors(engine, machine, first.model_name, fit.factors, fit.spread, names)
    kept = tuple(s for s in base.steps if (s.engine, s.machine, s.model) != (engine, machine, first.model_name))
    own = rescale(base, first.deployment, observations(runs[0].log, first, fit)).artifact
    return msgspec.structs.replace(own, steps=(*kept, found))


def _table(title: str, scores: Sequence[Score]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("run", "figure", "mean", "p50", "p90", "p99", "in 90 %"):
        table.add_column(name, justify="left" if name in ("run", "figure") else "right", overflow="fold")
    for found in scores:
        for kind in _KINDS:
            errors = getattr(found, kind)
            cells = [f"{getattr(errors, name):+.1%}" for name in _ERRORS[:4]]
            shown = found.name if kind == "ttft" else ""
            table.add_row(shown, kind.upper(), *cells, f"{errors.coverage90:.0%}")
    return table


def _write(data: dict[str, Any], path: Path) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    if str(path) == "-":
        typer.echo(text.decode())
        return
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _score_data(found: Score) -> dict[str, Any]:
    kinds = {kind: {name: getattr(getattr(found, kind), name) for name in _ERRORS} for kind in _KINDS}
    return {"run": found.name, "requests": found.requests, "unanswered": found.unanswered, **kinds}


JsonFile = Annotated[Path | None, typer.Option("--json", help="Figures; - for standard output.")]


@grouped
def fit(
    replicas: Replicas,
    logs: Logs,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Constants file that plan and simulate take.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Fit step times to measured runs of one engine on one machine."""
    from shoal.cli.console import stdout_console
    from shoal.plan.artifact import read_artifact, shipped, write_artifact
    from shoal.sim.factors import PARAMETERS
    from shoal.sim.score import score

    runs = [run_of(path, replicas) for path in logs]
    places = {(r.replica.candidate.engine.engine, r.replica.candidate.accelerator.name) for r in runs}
    if len(places) > 1:
        raise SpecError(
            "logs", ", ".join(" on ".join(place) for place in sorted(places)), "one engine on one machine"
        )
    found = fitted(runs)
    scores = [score(r.log, r.replica.scheduler, found.step(r.replica.prior), found.front) for r in runs]
    if output is not None:
        base = shipped() if replicas.constants is None else read_artifact(replicas.constants)
        try:
            write_artifact(constants_of(runs, found, base), output)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}") from None
    factors = dict(zip(PARAMETERS, found.factors, strict=True))
    if json_file is not None:
        data = {"factors": factors, "spread": found.spread, "residual": found.residual}
        _write({**data, "simulations": found.simulations, "runs": [_score_data(s) for s in scores]}, json_file)
    if json_file is None or str(json_file) != "-":
        console = stdout_console()
        console.print(_table("Simulated over measured, in sample", scores))
        times = " · ".join(f"{name} x{value:.2f}" for name, value in factors.items())
        console.print(f"\ntimes the planner's: {times}")
        console.print(f"90 % interval of a step: x{found.spread:.2f} either way; {found.simulations} simulations")
        if output is not None:
            console.print(f"constants: {output}")


@grouped
def score(
    replicas: Replicas,
    log: Annotated[Path, typer.Argument(help="A folder with requests.jsonl and meta.json, or bench's --jsonl.")],
    fits: Annotated[
        list[Path] | None, typer.Option("--fit", help="Runs to fit step times to first; may be repeated.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Replay a measured run and compare: signed errors of mean, p50, p90 and p99."""
    from shoal.cli.console import stdout_console
    from shoal.sim.factors import widened
    from shoal.sim.score import score as replayed

    run = run_of(log, replicas)
    step, front = run.replica.step, run.replica.front
    if fits:
        runs = [run_of(path, replicas) for path in fits]
        found = fitted(runs)
        step, front = found.step(run.replica.prior), found.front
        if all(r.replica.model_name != run.replica.model_name for r in runs):
            step = replace(step, spread=widened(step.spread))
    result = replayed(run.log, run.replica.scheduler, step, front)
    if json_file is not None:
        _write(
            {**_score_data(result), "spread": result.spread, "fitted_to": [str(p) for p in fits or ()]}, json_file
        )
    if json_file is None or str(json_file) != "-":
        how = "fitted to " + ", ".join(p.name for p in fits) if fits else "as the planner says"
        stdout_console().print(_table(f"Simulated over measured, step times {how}", [result]))
