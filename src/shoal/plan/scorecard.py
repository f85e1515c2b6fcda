"""The scorecard: a score as text for a terminal, and as the committed page."""

import datetime

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
        _percent(found.ttft.median_error),
        _percent(found.ttft.mean_error),
        _percent(found.ttft.coverage90),
    ]


_HEADINGS = ("rows", "TPOT median", "mean", "in 90 %", "TTFT median", "mean", "in 90 %")


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


_TITLES = {
    "in_sample": "in sample",
    "five_fold": "five-fold, unseen architecture on system",
    "five_fold_by_name": "five-fold, unseen model name on system",
}


def _quality_row(name: str, q: Quality) -> tuple[str, ...]:
    values = (q.tpot_median, q.tpot_mean, q.tpot_coverage, q.ttft_median, q.ttft_mean, q.ttft_coverage)
    return (_TITLES.get(name, name), f"{q.rows:,}", *map(_percent, values))


def _fit(artifact: Artifact) -> list[str]:
    rows = [_quality_row(name, quality) for name, quality in artifact.quality.items()]
    return [
        "## The fit",
        "",
        f"Constants fitted {artifact.fitted} to {artifact.source}.",
        "",
        *_markdown_table("", rows),
        "Five-fold: the rows are dealt into five parts by (model, system); each part is predicted by a fit that saw"
        " no row of its models on its machines. Grouped by architecture, names that share one (DeepSeek-R1 and V3,"
        " a checkpoint and its quantizations) count as one model, because the same measurement is published under"
        " several names; grouped by name, such copies leak between folds, which flatters.",
        "",
    ]


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
        " interval that should hold 90 %. TTFT and TPOT are means over a closed-loop run at the row's"
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
        " and more than its KV memory admits by our account. `workers assumed` are split rows that do not say"
        " how many workers there were, or in what layout.",
        "",
        "## What limits it",
        "",
        "- Rows do not record speculative decoding, which halves TPOT where it was on.",
        "- A quarter of the rows leave out the numbers of prefill and decode workers; TTFT depends on a guess.",
        "- Cold starts and streaming intervals of a harness are in the measured TTFT and in no column.",
        "",
    ]
    return "\n".join(lines)
