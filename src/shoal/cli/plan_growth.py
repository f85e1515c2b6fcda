"""`shoal plan --growth`: devices, servers and dollars month by month."""

import json

import typer
from rich.table import Table

from shoal.cli.console import stdout_console
from shoal.cli.plan_table import wrapped
from shoal.plan.asked import Read
from shoal.plan.growth import Grown, grow
from shoal.plan.growth_lines import growth_data, growth_lines, month_rows
from shoal.plan.restate import restate

NOTHING = 1
_COLUMNS = ("month", "traffic", "devices", "servers", "$/h", "$")


def answer_growth(read: Read, as_json: bool, emit: str | None, model: str, serve_model: str | None) -> None:
    """Print the months of a question, or with `emit` the text of the first month's design."""
    assert read.growth is not None
    grown = grow(read.question, read.growth, read.months)
    if emit is not None and grown.months:
        from shoal.plan.emit import emit as emit_text
        from shoal.plan.search import search

        typer.echo(emit_text(search(read.question), emit, model, grown.months[0].design, serve_model))
    elif as_json:
        typer.echo(json.dumps(growth_data(grown), indent=2))
    else:
        _show(grown)
    if not grown.months:
        raise typer.Exit(NOTHING)


def _show(grown: Grown) -> None:
    console = stdout_console()
    console.print(wrapped(restate(grown.question), console.width), style="bold", markup=False, soft_wrap=True)
    if grown.months:
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for row in month_rows(grown):
            table.add_row(*row)
        console.print(table)
        console.print()
    for line in growth_lines(grown):
        console.print(wrapped(line, console.width), markup=False, soft_wrap=True)
