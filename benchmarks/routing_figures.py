"""Figures, table and plot of several routing policies that answered the same conversations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paired import Paired, Values, Weights, estimates
from shoal.workload.records import Record
from shoal.workload.run import RunResult
from shoal.workload.stats import Estimate, ratio_estimate

Results = Mapping[str, Sequence[RunResult]]
"""Policy → one result a round."""


def brief(result: RunResult) -> str:
    """One run in one line."""
    done = [r for r in result.measured if r.ok]
    ttft = sorted(r.ttft for r in done if r.ttft is not None)
    if not ttft:
        return f"nothing of {len(result.measured)} answered"
    cached, prompt = sum(r.cached_tokens or 0 for r in done), sum(r.prompt_tokens or 0 for r in done)
    return (
        f"{len(done)}/{len(result.measured)} ok, hit rate {cached / max(1, prompt):.2f}, TTFT p50 "
        f"{ttft[len(ttft) // 2]:.2f} p99 {ttft[min(len(ttft) - 1, int(0.99 * len(ttft)))]:.2f} s, "
        f"{output_rate(result):.1f} tokens/s"
    )


def output_rate(result: RunResult) -> float:
    """Output tokens a second from the first measured arrival to the end of the last whole answer."""
    done = [r for r in result.measured if r.ok]
    if not done:
        return 0.0
    span = max(r.ended for r in done) - min(r.scheduled for r in result.measured)
    return sum(r.output_tokens for r in done) / span


def owners(results: Sequence[RunResult]) -> list[list[Record]]:
    """Measured requests by session, all rounds one after the other; the same places for every policy."""
    found: list[list[Record]] = []
    for result in results:
        sessions = max((r.session for r in result.records), default=-1) + 1
        rows: list[list[Record]] = [[] for _ in range(sessions)]
        for record in result.measured:
            rows[record.session].append(record)
        found += rows
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of every policy."""

    name: str
    paired: Paired
    scale: float = 1.0
    digits: int = 2


def columns(results: Results, against: str) -> list[Column]:
    """Every figure that sessions can be resampled for."""
    rows = {name: owners(found) for name, found in results.items()}
    sessions = len(rows[against])

    def at(read: Callable[[Record], float | None], level: float) -> Paired:
        def figure(values: Values) -> Callable[[Weights], float]:
            return lambda weights: values.quantile(level, weights)

        return estimates({n: figure(Values.of(r, read)) for n, r in rows.items()}, sessions, against)

    def hits(of: list[list[Record]]) -> Callable[[Weights], float]:
        cached = Values.of(of, lambda r: float(r.cached_tokens or 0) if r.ok else None)
        prompt = Values.of(of, lambda r: float(r.prompt_tokens or 0) if r.ok else None)
        return lambda weights: cached.total(weights) / max(1.0, prompt.total(weights))

    return [
        Column("hit rate, %", estimates({n: hits(r) for n, r in rows.items()}, sessions, against), 100, 0),
        Column("TTFT p50, s", at(lambda r: r.ttft, 0.5)),
        Column("TTFT p99, s", at(lambda r: r.ttft, 0.99)),
        Column("E2E p50, s", at(lambda r: r.e2e, 0.5)),
        Column("E2E p99, s", at(lambda r: r.e2e, 0.99)),
    ]


def throughput_ratios(results: Results, against: str) -> dict[str, Estimate]:
    """Each policy's tokens/s over that of `against`, by round."""
    base = [max(output_rate(r), 1e-9) for r in results[against]]
    return {
        name: ratio_estimate([max(output_rate(r), 1e-9) / b for r, b in zip(found, base, strict=True)])
        for name, found in results.items()
    }


def shown(e: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    """A figure with its interval."""
    text = f"{e.value * scale:.{digits}f}"
    if e.low is None or e.high is None:
        return text
    return f"{text} [{e.low * scale:.{digits}f}, {e.high * scale:.{digits}f}]"


def table(results: Results, against: str) -> str:
    """Markdown: a row for every policy, what the intervals mean, and what they allow to be said."""
    found, ratios = columns(results, against), throughput_ratios(results, against)
    names = [c.name for c in found]
    names += ["tokens/s", "not answered", f"TTFT p99 ÷ {against}", f"tokens/s ÷ {against}"]
    lines = ["| policy | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    tail = next(c for c in found if c.name.startswith("TTFT p99")).paired.ratios
    for name, runs in results.items():
        cells = [shown(c.paired.values[name], c.scale, c.digits) for c in found]
        missing = sum(not r.ok for run in runs for r in run.measured)
        cells += [f"{np.mean([output_rate(run) for run in runs]):.1f}"]
        cells += [f"{missing} of {sum(len(run.measured) for run in runs)}"]
        cells += ["–", "–"] if name == against else [shown(tail[name]), shown(ratios[name])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = (
        "\n\nIntervals are 95 %; those of TTFT, E2E and hit rate resample sessions, the same for every policy; "
        f"that of tokens/s is Student's over {len(results[against])} rounds. Hit rate: `cached_tokens` ÷ prompt "
        "tokens, as the engines count. TTFT counts from the scheduled send."
    )
    return "\n".join(lines) + notes + "\n\n" + verdict(results, against, tail, ratios)


def verdict(results: Results, against: str, tail: Mapping[str, Estimate], ratios: Mapping[str, Estimate]) -> str:
    """What the intervals allow to be said of the policy that the others are compared with."""
    said = []
    for name in results:
        if name != against:
            first = _said(tail[name], ("a shorter TTFT p99", "a longer TTFT p99", "no different TTFT p99"))
            second = _said(ratios[name], ("less throughput", "more throughput", "no different throughput"))
            said.append(f"than {name}, {first} and {second}")
    return f"{against} has: " + "; ".join(said) + "." if said else ""


def _said(ratio: Estimate, words: tuple[str, str, str]) -> str:
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return words[2]
    return words[0] if ratio.low > 1 else words[1]


def plot(results: Results, path: Path) -> None:
    """Share of requests whose first token had come, over time, a line for every policy; an SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, runs in results.items():
        measured = [r for run in runs for r in run.measured]
        times = sorted(r.ttft for r in measured if r.ttft is not None)
        axes.step(times, (np.arange(len(times)) + 1) / max(1, len(measured)), where="post", label=name)
    axes.set(xscale="log", xlabel="TTFT, s", ylabel="share of requests", ylim=(0, 1.01), title="Routing policies")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
