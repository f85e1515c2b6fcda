"""A plan on the terminal: a table of designs, then the explanation in sentences."""

import textwrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.cli.console import stdout_console
from shoal.plan.cost import distinct
from shoal.plan.designs import Design, Plan
from shoal.plan.explain import Explanation
from shoal.plan.restate import restate
from shoal.plan.step_time import Estimate
from shoal.plan.words import usd

_NARROW = 110


def show_plan(plan: Plan, explanation: Explanation, top: int) -> None:
    """Print to standard output."""
    console = stdout_console()
    console.print(wrapped(restate(plan.question), console.width), style="bold", markup=False, soft_wrap=True)
    if plan.best is not None:
        console.print(_table(plan, top, console.width < _NARROW))
        console.print(
            f"[dim]{_served(plan)} Equal numbers "
            "under # "
            "are too close to call. Intervals hold nine times in ten; ? marks targets that their upper end "
            "misses.[/dim]"
        )
        console.print()
    plain = {*explanation.summary, *explanation.prefix}
    for line in explanation.lines():
        heading = bool(line) and not line.startswith(" ") and line not in plain
        console.print(wrapped(line, console.width), style="bold" if heading else "", markup=False, soft_wrap=True)
    _figures(console, explanation)


def wrapped(line: str, width: int) -> str:
    """The line broken at blanks to this width; what goes on is indented below its beginning."""
    indent = len(line) - len(line.lstrip())
    further = " " * (indent + 2 if indent else 0)
    return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def _served(plan: Plan) -> str:
    splits = sum(1 for entry in plan.ranked if entry.design.split)
    combined = f", and {splits:,} splits that combine them" if splits else ""
    return f"{len(plan.ranked) - splits:,} of {plan.considered:,} layouts considered serve{combined}."


def _table(plan: Plan, top: int, narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("dev" if narrow else "devices", justify="right")
    table.add_column("design", overflow="fold")
    priced = any(entry.design.cost is not None for entry in plan.ranked)
    columns = ["TTFT s", "TPOT ms", *(["$/Mtok out", "$/h"] if priced else [])]
    for name in [*columns, *([] if narrow else ["tok/s/user", "tok/s/dev", "kW"])]:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in distinct(plan.ranked, top):
        d = entry.design
        cells = [str(entry.group), f"{d.devices:,}", _shape(d, narrow), _range(d.ttft), _range(d.tpot, 1e3, d.sure)]
        if priced:
            cells += _money(d, narrow)
        if not narrow:
            power = f"{d.energy.kilowatts:,.1f}" if d.energy else ""
            cells += [f"{d.per_user:,.0f}", f"{d.per_device:,.0f}", power]
        table.add_row(*cells)
    return table


def _money(d: Design, narrow: bool) -> list[str]:
    if d.cost is None:
        return ["no price", ""]
    million = d.cost.per_million_output
    return [usd(million.mean).removeprefix("$") if narrow else _range(million), f"{d.cost.per_hour:,.2f}"]


def _shape(d: Design, narrow: bool) -> str:
    decode = f"{d.replicas} × {d.layout.label()}"
    if d.prefill is not None:
        first = "" if d.prefill_accelerator is None else f" on {d.prefill_accelerator.name}"
        decode = f"{d.prefill_replicas} × {d.prefill.label()}{first} + {decode}"
    formats = f"{d.weights.name}/{d.kv_dtype}"
    return f"{d.accelerator.name} {decode}\n{formats}" if narrow else f"{d.accelerator.name}  {decode}, {formats}"


def _range(value: Estimate, scale: float = 1.0, sure: bool = True) -> str:
    mark = "" if sure else "?"
    low, mean, high = (v * scale for v in (value.low, value.mean, value.high))
    digits = 0 if mean >= 10 else 1 if mean >= 1 else 2
    return f"{mean:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f}){mark}"


def _figures(console: Console, explanation: Explanation) -> None:
    if not explanation.figures:
        return
    console.print()
    console.print("[bold]Figures and where they come from[/bold]")
    if console.width < _NARROW:
        for figure in explanation.figures:
            told = f"  {figure.name}: {figure.text} ({figure.kind}: {figure.source})"
            console.print(wrapped(told, console.width), markup=False, soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 1), show_header=False)
    for figure in explanation.figures:
        table.add_row(f" {figure.name}", figure.text, figure.kind, f"[dim]{escape(figure.source)}[/dim]")
    console.print(table)
