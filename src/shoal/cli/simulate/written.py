"""Where the results of `shoal simulate` go: the terminal, JSON, CSV, JSON lines, HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import typer

from shoal.cli.bench_options import Output, UsageError
from shoal.cli.simulate.study import Outcome, Study

if TYPE_CHECKING:
    from shoal.sim.figures import Figures
    from shoal.sim.reasons import Why
    from shoal.workload.report.document import Report

SCHEMA = "shoal.simulate/1"
_SLOWEST = 20


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command found."""

    report: Report
    study: Study
    outcomes: Sequence[Outcome] = ()
    figures: Figures | None = None
    slow: Sequence[Why] = ()
    results: object = None
    """Of a sweep or a comparison."""


def write(done: Finished, output: Output) -> None:
    """Show the report and write the files that were asked for."""
    from shoal.cli.console import stdout_console
    from shoal.workload.report import show
    from shoal.workload.report.files import write_csv, write_jsonl
    from shoal.workload.report.html import write_html

    if output.json_file is not None and str(output.json_file) == "-":
        typer.echo(_json(done).decode())
    else:
        show(done.report, stdout_console())
    path = None
    try:
        if (path := output.json_file) is not None and str(path) != "-":
            path.write_bytes(_json(done) + b"\n")
        if (path := output.csv_file) is not None:
            write_csv(path, done.study.recorded)
        if (path := output.jsonl_file) is not None:
            write_jsonl(path, done.study.recorded)
        if (path := output.html_file) is not None:
            write_html(path, done.report)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _json(done: Finished) -> bytes:
    from shoal.sim.figures import figures_data

    head: dict[str, object] = {"schema": SCHEMA, "facts": dict(done.report.facts), "command": done.report.command}
    if done.figures is None:
        return msgspec.json.format(msgspec.json.encode(head | {"results": done.results}), indent=2)
    first = done.outcomes[0]
    simulated = first.simulated
    body = head | figures_data(done.figures)
    body |= {
        "processor_seconds": sum(o.processor_seconds for o in done.outcomes),
        "load": first.summary.load,
        "seeds": len(done.outcomes),
        "partial": any(o.summary.partial for o in done.outcomes),
        "outcomes": {t.name: t.count for t in first.summary.outcomes},
        "attained": first.summary.attained.value,
        "steps": simulated.steps,
        "steps_jumped": simulated.jumped,
        "preemptions": simulated.preemptions,
        "crashes": simulated.crashes,
        "hangs": simulated.hangs,
        "replicas": [{"name": name, "busy": busy} for name, busy in simulated.busy],
        "slowest": [
            {
                "request": w.record.index,
                "ttft": w.record.ttft,
                "e2e": w.record.e2e,
                "outcome": w.record.outcome,
                "replica": w.record.replica,
                "main": w.main,
                "seconds": w.parts,
                "why": w.text,
            }
            for w in done.slow[:_SLOWEST]
        ],
        "warnings": [w for o in done.outcomes for w in o.warnings],
        "notes": list(done.report.sections[0].notes),
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2)
