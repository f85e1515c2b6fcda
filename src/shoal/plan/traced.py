"""The workload of a trace or a log: lengths, peaks, the curve over the day, and how much of the input repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.plan.asked import Asked
from shoal.plan.readers.trace import BLOCK_TOKENS, TraceRequest
from shoal.specs.errors import SpecError
from shoal.specs.units import duration

PEAK_SECONDS = 60.0
"""The peak is the busiest minute: shorter bursts queue."""
DAY_SECONDS = 86_400.0
BARS = 24
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class TracedLengths:
    """Tokens of a request."""

    mean: float
    p95: float
    longest: int


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace says of its traffic."""

    requests: int
    seconds: float
    """From the first request to the last."""
    input: TracedLengths
    output: TracedLengths
    longest: int
    """Input and output together of the longest request."""
    mean_rate: float
    """Requests per second."""
    peak_rate: float
    """In the busiest minute."""
    prefix_hit: float | None
    """Share of input tokens that repeat an earlier prefix, if nothing is evicted, or that the server found cached;
    None: the trace does not say."""
    curve: tuple[float, ...]
    """Requests per second in `BARS` parts: of the day where a day or more is covered, else of the span."""
    by_hour: bool

    @property
    def peak_to_mean(self) -> float:
        return max(1.0, self.peak_rate / self.mean_rate)


def summarize(requests: Sequence[TraceRequest]) -> Traced:
    """The workload of requests in order of time. Raises `SpecError` for fewer than two, or all at one moment."""
    if len(requests) < 2 or requests[-1].at <= requests[0].at:
        raise SpecError("trace", len(requests), "two requests or more, at different times")
    start, span = requests[0].at, requests[-1].at - requests[0].at
    return Traced(
        requests=len(requests), seconds=span,
        input=_lengths([r.input for r in requests]), output=_lengths([r.output for r in requests]),
        longest=max(r.input + r.output for r in requests),
        mean_rate=len(requests) / span, peak_rate=_peak([r.at - start for r in requests], span),
        prefix_hit=_reuse(requests), curve=_curve(requests, span), by_hour=span >= DAY_SECONDS,
    )  # fmt: skip


def _lengths(values: list[int]) -> TracedLengths:
    ordered = sorted(values)
    return TracedLengths(sum(values) / len(values), float(ordered[int(0.95 * (len(ordered) - 1))]), ordered[-1])


def _peak(times: Sequence[float], span: float) -> float:
    """Requests per second in the busiest window of `PEAK_SECONDS`."""
    window = min(PEAK_SECONDS, span)
    most, first = 0, 0
    for last, at in enumerate(times):
        while times[first] <= at - window:
            first += 1
        most = max(most, last - first + 1)
    return most / window


def _reuse(requests: Sequence[TraceRequest]) -> float | None:
    if all(r.cached is None and not r.blocks for r in requests):
        return None
    seen: set[int] = set()
    reused = 0
    for request in requests:
        if request.cached is not None:
            reused += min(request.cached, request.input)
            continue
        known = 0
        for block in request.blocks:
            if block not in seen:
                break
            known += 1
        seen.update(request.blocks)
        # The last token is computed in any case: its logits are needed.
        reused += min(known * BLOCK_TOKENS, request.input - 1)
    return reused / sum(r.input for r in requests)


def _curve(requests: Sequence[TraceRequest], span: float) -> tuple[float, ...]:
    counts = [0] * BARS
    if span >= DAY_SECONDS:
        for request in requests:
            counts[int(request.at % DAY_SECONDS / 3600) % BARS] += 1
        return tuple(count / (3600 * span / DAY_SECONDS) for count in counts)
    for request in requests:
        counts[min(BARS - 1, int((request.at - requests[0].at) / span * BARS))] += 1
    return tuple(count / (span / BARS) for count in counts)


def trace_lines(found: Traced, name: str) -> list[str]:
    """What a trace says, in sentences."""
    reuse = (
        "nothing is said of prefixes" if found.prefix_hit is None
        else f"{found.prefix_hit:.0%} of the input repeats a prefix, if nothing is evicted"
    )  # fmt: skip
    top = max(found.curve)
    bars = "".join(_BLOCKS[math.ceil(rate / top * (len(_BLOCKS) - 1))] for rate in found.curve)
    over = "by hour of the day (UTC)" if found.by_hour else f"in {BARS} parts of {duration(found.seconds / BARS)}"
    return [
        f"{name}: {found.requests:,} requests in {duration(found.seconds)}, {found.mean_rate:.3g} per second; "
        f"{found.peak_rate:.3g} in the busiest minute, {found.peak_to_mean:.2g} times the mean.",
        f"  input {_told(found.input)}, output {_told(found.output)}; {reuse}.",
        f"  requests {over}: |{bars}| {min(found.curve):.3g} to {top:.3g} per second",
    ]


def _told(lengths: TracedLengths) -> str:
    return f"{lengths.mean:,.0f} tokens (p95 {lengths.p95:,.0f}, longest {lengths.longest:,})"


def with_trace(asked: Asked, found: Traced) -> Asked:
    """The question with what the trace says wherever nothing was typed.

    Requests longer than the model's context are left to the question to refuse.
    """
    values = {
        "input": f"{max(1.0, found.input.mean):.0f}",
        "output": f"{max(1.0, found.output.mean):.0f}",
        "context": str(found.longest),
        "rate": None if asked.users is not None else f"{found.peak_rate:.4g}/s",
        "peak_to_mean": f"{min(found.peak_to_mean, 1000):.4g}",
        "prefix_hit": None if found.prefix_hit is None else f"{min(found.prefix_hit, 0.99) * 100:.3g}%",
    }
    given = {name: value for name, value in values.items() if getattr(asked, name) is None and value is not None}
    return replace(asked, **given)
