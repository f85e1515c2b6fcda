"""The scorecard: a score as text for a terminal, and as the committed page."""

import datetime
from collections.abc import Mapping

from shoal.plan.artifact import Artifact, Quality
from shoal.plan.estimator import ServingEstimator
from shoal.plan.score import Score, Slice


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _cells(found: Slice) -> list[str]:
    return [
        f"{found.rows:,}",
        _percent(found.tpot.median_error),
        _percent(found.tpot.mean_error),
        _percent(found.tpot.coverage90),
        f"{found.tpot.width:.2f}",
        _percent(found.ttft.median_error),
        _percent(found.ttft.mean_error),
        _percent(found.ttft.coverage90),
        f"{found.ttft.width:.2f}",
    ]


_HEADINGS = ("rows", "TPOT median", "mean", "in 90 %", "width", "TTFT median", "mean", "in 90 %", "width")


def table(score: Score) -> str:
    """The score as aligned text."""
    lines = [("all", *_cells(score.total))]
    for dimension, slices in score.by.items():
        lines += [(f"{dimension}: {value}", *_cells(found)) for value, found in slices.items()]
    widths = [max(len(line[i]) for line in [("", *_HEADINGS), *lines]) for i in range(len(_HEADINGS) + 1)]

    def row(cells: tuple[str, ...]) -> str:
        first, *rest = cells
        return "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))])

    head = f"{len(score.rows):,} rows, {score.answered:,} answered"
    return "\n".join([head, row(("", *_HEADINGS)), *map(row, lines)])


def _markdown_table(heading: str, rows: list[tuple[str, ...]]) -> list[str]:
    names = (heading, *_HEADINGS)
    return [
        "| " + " | ".join(names) + " |",
        "|---" + "|---:" * len(_HEADINGS) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


_TITLES: Mapping[str, str] = {
    "nothing": "In sample",
    "rows": "A quarter of the rows left out",
    "machines": "Whole machines left out",
    "models": "Whole models left out",
    "machines, intervals too": "Whole machines left out, of the intervals too",
    "models, intervals too": "Whole models left out, of the intervals too",
    "engines": "Whole engines left out",
    "generations": "Whole generations of hardware left out",
}
"""What a fit left out, as a heading."""


def _quality_row(name: str, q: Quality) -> tuple[str, ...]:
    tpot = (_percent(q.tpot_median), _percent(q.tpot_mean), _percent(q.tpot_coverage), f"{q.tpot_width:.2f}")
    ttft = (_percent(q.ttft_median), _percent(q.ttft_mean), _percent(q.ttft_coverage), f"{q.ttft_width:.2f}")
    return (name, f"{q.rows:,}", *tpot, *ttft)


def _fit(artifact: Artifact) -> list[str]:
    lines = [
        "## The fit",
        "",
        f"Constants fitted {artifact.fitted} to {artifact.source}.",
        "",
        *_markdown_table("", [_quality_row(_TITLES[n].lower(), q["all"]) for n, q in artifact.quality.items()]),
        "Each line but the first is of predictions by fits that did not see the row: one fit for every machine,"
        " model (names that share an architecture, such as DeepSeek-R1 and V3 or a checkpoint and its"
        " quantizations, are one), engine or generation, which is left out whole. What a deployment has in common"
        " with the measured rows decides which of these its interval comes from: a measured model on a measured"
        " machine gets the narrow one of rows left out, an unmeasured machine that of machines left out, and so on."
        " The width for what is new is the quantile of such residuals, one factor for each regime and class of"
        " hardware, so coverage over all that was left out is 90 % by construction. How it holds for the next"
        ' machine or model is said by the lines "intervals too", whose widths come from the others alone.',
        "",
    ]
    for name in ("machines", "machines, intervals too", "models", "models, intervals too"):
        if name in artifact.quality:
            slices = [_quality_row(key, q) for key, q in artifact.quality[name].items()]
            lines += [f"### {_TITLES[name]}", "", *_markdown_table("", slices)]
    return lines


def scorecard(score: Score, estimator: ServingEstimator, source: str) -> str:
    """The scorecard as Markdown."""
    lines = [
        "# Scorecard",
        "",
        f"Predictions of `shoal plan` against the measured rows of `{source}`, {datetime.date.today().isoformat()}:"
        f" {len(score.rows):,} rows, {score.answered:,} answered. Written by"
        f" `shoal plan score {source} --markdown docs/scorecard.md`.",
        "",
        'Errors are absolute and relative to the measured value; "in 90 %" is the share of rows inside the'
        ' interval that should hold 90 %; "width" is the median of an interval\'s upper over its lower end.'
        " TTFT and TPOT are means over a closed-loop run at the row's"
        " offered concurrency.",
        "",
        *_fit(estimator.artifact),
        "## In sample, by slice",
        "",
        *_markdown_table("", [("all", *_cells(score.total))]),
    ]
    for dimension, slices in score.by.items():
        lines += _markdown_table(dimension, [(value, *_cells(found)) for value, found in slices.items()])
    lines += [
        "`idle`, `loaded` and `memory-bound` are aggregated rows: up to 16 requests for an attention rank, more,"
        " and more than its KV memory admits by our account (of the fit that left the row out, where one did)."
        " `workers assumed` are split rows that do not say"
        " how many workers there were, or in what layout.",
        "",
        "## What limits it",
        "",
        "- Rows do not record speculative decoding, which halves TPOT where it was on.",
        "- A quarter of the rows leave out the numbers of prefill and decode workers; TTFT depends on a guess.",
        "- TTFT of what was left out: the residuals of one model, engine, machine and regime spread by a factor of"
        " five (90 %, workers known) around their own middle, and these middles by as much again. No width of 3 can"
        " hold them. That would take what the columns lack: queueing and warm-up of the harness, the chunk of"
        " prefill, the engine's version; or a run of one's own (`shoal plan calibrate`).",
        "- Cold starts and streaming intervals of a harness are in the measured TTFT and in no column.",
        "",
    ]
    return "\n".join(lines)
