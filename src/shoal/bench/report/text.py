"""A report on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from shoal.bench.report.document import Report, Table


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
            console.print(_rich(table))
        for warning in section.warnings:
            console.print(f"  [yellow]warning:[/] {escape(warning)}", soft_wrap=True)
        for note in section.notes:
            console.print(f"  [dim]note:[/] {escape(note)}", soft_wrap=True)
    console.print("\n[dim]What the figures mean[/]")
    for name, meaning in report.definitions:
        console.print(f"  [dim]{escape(name)}: {escape(meaning)}[/]", soft_wrap=True)
    console.print(f"\n[dim]To run it again:[/] {escape(report.command)}", soft_wrap=True)


def _rich(table: Table) -> RichTable:
    headed = any(table.header)
    made = RichTable(title=table.title or None, title_justify="left", show_header=headed, box=None, padding=(0, 2))
    for i, name in enumerate(table.header):
        made.add_column(name, justify="left" if i == 0 or not headed else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*(escape(cell) for cell in row))
    return made
