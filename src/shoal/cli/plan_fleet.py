"""`shoal plan --file` for several models in one fleet."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.question import read_question
from shoal.plan.asked import Asked, Read, Refused
from shoal.plan.fleet_lines import fleet_data, fleet_lines
from shoal.plan.fleet_plan import FleetPlan, Member, Placed, plan_fleet
from shoal.plan.question_file import QuestionFile, with_defaults
from shoal.plan.restate import restate
from shoal.plan.words import milliseconds, seconds, usd
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = 1


def fleet_of(file: QuestionFile, typed: Asked, catalogs: Sequence[Path], engine: str = "vllm") -> FleetPlan:
    """Plan the fleet of a file; what was typed beside it holds for every model.

    Raises `Refused` with everything that is wrong, by file and line.
    """
    reads: list[Read] = []
    problems: list[SpecError] = []
    if typed.model is not None or typed.layout is not None:
        name = "MODEL" if typed.model is not None else "--layout"
        raise SpecError(name, typed.model or typed.layout, f"none: {file.name} has a list of models")
    for section in file.models:
        asked = with_defaults(typed, section.asked)
        try:
            reads.append(read_question(asked, catalogs, engine, file, section))
        except Refused as refused:
            problems += [problem for problem in refused.problems if str(problem) not in map(str, problems)]
    if problems:
        raise Refused(problems)
    names = _names([section.asked.model or "" for section in file.models])
    members = [Member(name, read.question) for name, read in zip(names, reads, strict=True)]
    return plan_fleet(members, reads[0].owned)


def _names(models: Sequence[str]) -> list[str]:
    """Names by which the models can be told apart: one that comes twice is numbered."""
    counts, seen = Counter(models), Counter[str]()
    named = []
    for model in models:
        seen[model] += 1
        named.append(model if counts[model] == 1 else f"{model} ({seen[model]})")
    return named


def answer_fleet(
    file: QuestionFile, typed: Asked, catalogs: Sequence[Path], engine: str, as_json: bool, emit: str | None
) -> None:  # fmt: skip
    """Print the fleet of a file, or the commands or manifests that run it."""
    fleet = fleet_of(file, typed, catalogs, engine)
    if emit is not None and fleet.serves:
        typer.echo(emitted(fleet, emit))
    elif as_json:
        typer.echo(json.dumps(fleet_data(fleet), indent=2))
    else:
        _show(fleet)
    if not fleet.serves:
        raise typer.Exit(NOTHING)


def emitted(fleet: FleetPlan, target: str) -> str:
    """Commands or manifests of every model, one after another. Raises `SpecError` for a target of one model."""
    from shoal.plan.emit import emit

    if target == "shoal":
        accepted = "vllm, sglang, trtllm or k8s: a fleet.yaml is written for one model at a time"
        raise SpecError("emit", target, accepted)
    texts = [emit(entry.plan, target, entry.member.name.partition(" (")[0], entry.design) for entry in fleet.placed]
    return ("---\n" if target == "k8s" else "\n").join(texts)


def _show(fleet: FleetPlan) -> None:
    from shoal.cli.console import stdout_console
    from shoal.cli.plan_table import wrapped

    console = stdout_console()
    for entry in fleet.placed:
        text = wrapped(restate(entry.member.question), console.width)
        console.print(text, style="bold", markup=False, soft_wrap=True)
    if any(entry.design is not None for entry in fleet.placed):
        console.print(_table(fleet))
    console.print()
    for line in fleet_lines(fleet):
        console.print(wrapped(line, console.width), markup=False, soft_wrap=True)


def _table(fleet: FleetPlan) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name, numeric in (("model", False), ("dev", True), ("design", False), ("TTFT", True), ("TPOT", True)):
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    table.add_column("$/h", justify="right", no_wrap=True)
    for entry in fleet.placed:
        table.add_row(entry.member.name, *_cells(entry))
    return table


def _cells(entry: Placed) -> list[str]:
    d = entry.design
    if d is None:
        return ["", "nothing", "", "", ""]
    price = "" if d.cost is None else usd(d.cost.per_hour).removeprefix("$")
    return [f"{d.devices:,}", d.name, seconds(d.ttft), milliseconds(d.tpot), price]
