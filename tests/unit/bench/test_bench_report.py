"""Reports: what is written can be read again, and a page needs nothing from outside itself."""

import csv
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchkit import record, result
from rich.console import Console

from shoal.bench.job import Job
from shoal.policy.outcomes import Outcome
from shoal.workload.objectives import Objectives
from shoal.workload.report import Plot, Series, show, write_csv, write_html, write_json
from shoal.workload.report.document import Report
from shoal.workload.report.files import Recorded
from shoal.workload.report.svg import svg, ticks


@pytest.fixture
def job() -> Job:
    return Job(Objectives(ttft=0.2), seed=3, salt="ab")


@pytest.fixture
def report(job: Job) -> Report:
    records = [record(i, scheduled=i / 10, ttft=0.05 + i / 100) for i in range(30)]
    records.append(record(30, scheduled=3.0, outcome=Outcome.REPLICA_FAULT, error="<b>&broke"))
    measured = job.judge(result(records, 0.0, 3.1), "Result <1>")
    return job.report("Shoal bench", "shoal bench run 'a b'", [], [measured.section], partial=True)


def test_the_terminal_shows_figures_definitions_and_the_command(report: Report) -> None:
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    text = out.getvalue()
    for part in ("PARTIAL", "30 ok, 1 replica_fault", "TTFT", "goodput", "scheduled send", "shoal bench run 'a b'"):
        assert part in text
    assert "<b>&broke" in text


@pytest.mark.parametrize("width", [60, 80, 100, 1000])
def test_no_number_is_broken_at_any_width(report: Report, width: int) -> None:
    out = io.StringIO()
    show(report, Console(file=out, width=width))
    printed = out.getvalue().splitlines()
    table = report.sections[0].tables[1]
    for cell in (*table.header, *(cell for row in table.rows for cell in row)):
        assert any(cell in line for line in printed), cell


def test_a_piped_table_is_as_wide_as_its_columns(tmp_path: Path) -> None:
    code = (
        "from rich.table import Table\nfrom shoal.cli.console import stdout_console\n"
        "t = Table(box=None)\nfor i in range(30): t.add_column(f'column{i}')\n"
        "t.add_row(*(f'12.34 [{i}, 56.78]' for i in range(30)))\nstdout_console().print(t)"
    )
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[1].split("  ")[0].strip() == "12.34 [0, 56.78]"


def test_the_page_is_well_formed_self_contained_and_escaped(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_html(path, report)
    page = path.read_text()
    assert "<b>&broke" not in page
    assert "&lt;b&gt;&amp;broke" in page
    assert 'name="viewport"' in page
    assert "Partial" in page
    for outside in ("http://", "https://", "<script", "@import", "url("):
        assert outside not in page
    # Intervals stand below their figures: on one line, eight columns were wider than the page and cut off.
    latencies = page.split("<th>p50</th>")[1].split("</table>")[0]
    assert latencies.count("<small>[") >= 20
    assert " [" not in latencies
    drawings = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(drawings) == 4
    for drawing in drawings:
        ET.fromstring("<svg" + drawing + "</svg>")


def test_json_and_csv_hold_every_figure(job: Job, report: Report, tmp_path: Path) -> None:
    measured = job.judge(result([record(0), record(1)], 0.0, 1.0), "x")
    write_json(tmp_path / "r.json", report, measured.summary)
    read = json.loads((tmp_path / "r.json").read_text())
    assert read["schema"] == "shoal.bench/1"
    assert read["results"]["ttft"]["quantiles"][0]["estimate"]["value"] == pytest.approx(0.1)
    assert read["results"]["outcomes"] == [{"name": "ok", "count": 2}]
    assert read["report"]["partial"] is True
    write_csv(tmp_path / "r.csv", [Recorded("x", measured.result.records)])
    with (tmp_path / "r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert float(rows[0]["ttft"]) == pytest.approx(0.1)
    assert [float(t) for t in rows[0]["events"].split()] == pytest.approx([0.1, 0.11, 0.12, 0.13, 0.14])


def test_plots_stay_inside_their_frame_and_small() -> None:
    many = Series("a", tuple((float(i), float(i % 7)) for i in range(50_000)), "dots")
    drawn = svg(Plot("t", "x", "y", (many, Series("b", ((1.0, 2.0),), "line")), (("limit", 9.0),)))
    assert len(drawn) < 200_000
    root = ET.fromstring(drawn)
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 640
        assert 0 <= float(circle.attrib["cy"]) <= 340
    assert svg(Plot("t", "x", "y", ())) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.0013), (-3, 17), (1e3, 5e6)])
def test_ticks_are_round_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert all(low - 1e-9 <= t <= high * (1 + 1e-9) for t in found)
