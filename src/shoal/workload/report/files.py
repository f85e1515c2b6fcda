"""JSON of everything but the plots; CSV or JSON lines of every request."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from shoal.workload.records import Record
from shoal.workload.report.document import Report

_COLUMNS = (
    "run index session turn phase scheduled sent ended outcome status error ttft tpot e2e schedule_delay "
    "asked_prompt prompt_tokens cached_tokens asked_output output_tokens finish_reason replica model priority "
    "events"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The requests of one run of a report."""

    run: str
    records: tuple[Record, ...]


def json_bytes(report: Report, results: object) -> bytes:
    """The report and its figures in base units (seconds, tokens, requests); `results` is any dataclass."""
    plain = replace(report, sections=tuple(replace(s, plots=()) for s in report.sections))
    document = {"schema": "shoal.bench/1", "report": plain, "results": results}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def write_json(path: Path, report: Report, results: object) -> None:
    path.write_bytes(json_bytes(report, results) + b"\n")


def write_csv(path: Path, runs: Sequence[Recorded]) -> None:
    """One line per request; times in seconds since the start of its run, `events` separated by blanks."""
    columns = _COLUMNS.split()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for recorded in runs:
            for record in recorded.records:
                writer.writerow([recorded.run, *(_cell(getattr(record, name)) for name in columns[1:])])


def write_jsonl(path: Path, runs: Sequence[Recorded]) -> None:
    """One JSON object per request, with the columns of `write_csv`; `events` is a list, times have all digits."""
    columns = _COLUMNS.split()
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for recorded in runs:
            for record in recorded.records:
                row = {name: getattr(record, name) for name in columns[1:]}
                file.write(encode({"run": recorded.run} | row) + b"\n")


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(f"{v:.6f}" for v in value)
    return f"{value:.6f}" if isinstance(value, float) else "" if value is None else value
