"""A report on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from shoal.workload.report.document import Report, Table


def show(report: Report, console: Console) -> None:
    """Print everything but the plots; definitions and the command to run it again come last."""
    partial = "  [bold red]PARTIAL: stopped before its end[/]" if report.partial else ""
    console.print(f"[bold]{escape(report.title)}[/]{partial}")
    for name, value in report.facts:
        console.print(f"  [dim]{escape(name):<10}[/] {escape(value)}", soft_wrap=True)
    for section in report.sections:
        console.print(f"\n[bold]{escape(section.title)}[/]")
        if section.text:
            console.print(f"  {escape(section.text)}", soft_wrap=True)
        for table in section.tables:
            for part in fit_columns(table, console.width):
                console.print(_rich(part))
        for warning in section.warnings:
            console.print(f"  [yellow]warning:[/] {escape(warning)}", soft_wrap=True)
        for note in section.notes:
            console.print(f"  [dim]note:[/] {escape(note)}", soft_wrap=True)
    console.print("\n[dim]What the figures mean[/]")
    for name, meaning in report.definitions:
        console.print(f"  [dim]{escape(name)}: {escape(meaning)}[/]", soft_wrap=True)
    console.print(f"\n[dim]To run it again:[/] {escape(report.command)}", soft_wrap=True)


_PADDING = 1
"""Blank columns on either side of a cell."""
_WORDS = 36
"""Columns that a cell of words has at least, blanks beside it included."""


def fit_columns(table: Table, width: int) -> tuple[Table, ...]:
    """Cut a table that is wider than `width` into several that fit, each beginning with the first column.

    A table without a header holds text, which wraps at blanks; it is left whole.
    """
    if not any(table.header):
        return (table,)
    lines = (table.header, *table.rows)
    widths = [max(len(line[i]) for line in lines) + 2 * _PADDING for i in range(len(table.header))]
    if table.words:
        widths[-1] = min(widths[-1], max(_WORDS, width - sum(widths[:-1])))
    parts: list[list[int]] = []
    used = 0
    for i in range(1, len(widths)):
        if not parts or used + widths[i] > width:
            parts.append([0])
            used = widths[0]
        parts[-1].append(i)
        used += widths[i]
    return tuple(
        Table(
            tuple(table.header[i] for i in part),
            tuple(tuple(row[i] for i in part) for row in table.rows),
            table.title,
            table.words and part[-1] == len(widths) - 1,
        )
        for part in parts
    )


def _rich(table: Table) -> RichTable:
    headed = any(table.header)
    made = RichTable(
        title=table.title or None, title_justify="left", show_header=headed, box=None, padding=(0, _PADDING)
    )
    for i, name in enumerate(table.header):
        words = not headed or (table.words and i + 1 == len(table.header))
        made.add_column(name, justify="left" if i == 0 or words else "right", no_wrap=not words)
    for row in table.rows:
        made.add_row(*(escape(cell) for cell in row))
    return made
