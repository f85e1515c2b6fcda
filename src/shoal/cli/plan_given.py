"""`shoal plan` about what is there already: how much these devices carry, and what a named layout does."""

import json

import typer

from shoal.plan.asked import Read
from shoal.plan.given import Given, comparison, given
from shoal.plan.inverse import Carried, Gain, as_published, carried, gains, inverse_lines
from shoal.plan.report.data import design_data
from shoal.plan.restate import restate
from shoal.specs.errors import SpecError

NOTHING = 1


def answer_inverse(read: Read, quick: bool, as_json: bool) -> None:
    """Print how many users each kind of device carries."""
    question = read.question
    results: list[tuple[Carried, Carried | None, tuple[Gain, ...]]] = []
    for accelerator, devices in read.owned:
        found = carried(question, accelerator, devices)
        published = None if quick else as_published(question, found)
        results.append((found, published, () if quick else gains(question, found)))
    if as_json:
        typer.echo(json.dumps([_carried_data(*result) for result in results], indent=2))
    else:
        from shoal.cli.console import stdout_console

        console = stdout_console()
        asked = restate(question, traffic="as many users as these devices carry")
        console.print(asked, style="bold", markup=False)
        for result in results:
            console.print()
            for line in inverse_lines(*result):
                console.print(line, markup=False)
    if not any(found.users for found, _, _ in results):
        raise typer.Exit(NOTHING)


def _carried_data(found: Carried, published: Carried | None, changes: tuple[Gain, ...]) -> dict[str, object]:
    return {
        "accelerator": found.accelerator.name,
        "devices": found.devices,
        "users": found.users,
        "design": None if found.design is None else design_data(found.design),
        "users_without_conversion": None if published is None else published.users,
        "gains": [{"change": g.change, "users": g.users, "factor": g.factor} for g in changes],
        "sentences": inverse_lines(found, published, changes),
    }


def answer_layouts(read: Read, quick: bool, as_json: bool) -> None:
    """Print what each named design does on each accelerator, side by side."""
    question = read.question
    if len(question.accelerators) > 8:
        raise SpecError("--gpu", None, "the accelerator that the layout is for, such as h100")
    found = [given(question, part, named) for named in read.layouts for part in question.accelerators]
    rows = comparison(question, found)
    if as_json:
        typer.echo(json.dumps([_given_data(entry) for entry in found], indent=2))
    else:
        from rich.table import Table

        from shoal.cli.console import stdout_console

        console = stdout_console()
        console.print(restate(question), style="bold", markup=False)
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(no_wrap=True)
        for _ in found:
            table.add_column(overflow="fold")
        for name, values in rows:
            table.add_row(name, *values)
        console.print(table, markup=False)
    if all(entry.design is None for entry in found):
        raise typer.Exit(NOTHING)


def _given_data(entry: Given) -> dict[str, object]:
    return {
        "accelerator": entry.accelerator.name,
        "layout": entry.named.layout.label(),
        "replicas": entry.replicas,
        "meets_targets": entry.meets,
        "reason": entry.reason,
        "replicas_needed": None if entry.needed is None else entry.needed.replicas,
        "one_replica" if entry.named.replicas else "design": None
        if entry.design is None
        else design_data(entry.design),
    }
