"""The figures of one run, computed from its records. `DEFINITIONS` says what each of them means."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.workload.backlog import Backlog, backlog
from shoal.workload.objectives import Objectives
from shoal.workload.records import Record
from shoal.workload.run import RunResult
from shoal.workload.stats import RESAMPLES, Distribution, Estimate, Floats, distribution, mean_estimate

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("scheduled send", "when a request was due by the arrival process; in a closed loop, when its user was ready"),
    ("TTFT", "first event with visible text − scheduled send"),
    ("E2E", "last event of the answer − scheduled send"),
    ("TPOT", "(E2E − TTFT) / (n − 1) of one request, n its output tokens as the server counts them"),
    ("ITL", "every gap between consecutive events with text, of all requests (not a mean of each request)"),
    ("schedule delay", "actual send − scheduled send: the load generator's own lateness, part of every latency"),
    ("window", "open loop: first measured arrival to one mean gap after the last; closed: until the last one ends"),
    ("tokens/s", "output tokens that arrived in the window ÷ window, of every request in flight, warm-up included"),
    ("goodput", "answers that met all objectives and ended in the window ÷ window, warm-up included"),
    ("percentile", "nearest rank: the smallest value that this share of values does not exceed"),
    ("[low, high]", "95 % interval by a block bootstrap over requests; ~ marks fewer than 10 requests beyond"),
)
_SLICES = 20


@dataclass(frozen=True, slots=True)
class Missed:
    """How many requests failed one objective; a request may fail several."""

    objective: str
    requests: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A name and how often it occurred."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of the measured requests of one run. Seconds, tokens, requests."""

    load: str
    concurrency: int | None
    partial: bool
    window: float
    requests: int
    outcomes: tuple[Tally, ...]
    errors: tuple[Tally, ...]
    """The commonest messages of failed requests."""
    requested_rate: float | None
    """Sessions per second."""
    sent_rate: float | None
    """(n − 1) / (last send − first send) of the n measured first turns: comparable to `requested_rate`."""
    completed_rate: float
    """Whole answers that ended in the window ÷ window, warm-up included."""
    backlog: Backlog | None
    """Arrivals against completions; None in a closed loop."""
    schedule_delay: Distribution | None
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    output_rate: Estimate
    """Tokens per second."""
    prompt_rate: float
    """Prompt tokens, cached ones included, of requests whose first token came in the window, per second."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """None: the server doesn't say."""
    tokens_per_event: float
    objectives: Objectives
    goodput: Estimate
    """Requests per second, at most `completed_rate`."""
    attained: Estimate
    """Share of the measured requests that met every objective."""
    missed: tuple[Missed, ...]
    replicas: tuple[Tally, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> int:
        return sum(t.count for t in self.outcomes if t.name != "ok")

    @property
    def hit_rate(self) -> float | None:
        """Cached share of the prompt tokens."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


def summarize(
    result: RunResult, objectives: Objectives | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> Summary:
    """All figures of a run. A run without measured requests has none but its counts.

    Args:
        resamples: of the bootstrap that gives intervals; 0: none are given.
    """
    objectives = objectives or Objectives()
    measured = result.measured
    window = max(result.window, 1e-9)
    ended = [r for r in result.records if result.start <= r.ended <= result.end]
    cached = [r.cached_tokens for r in measured if r.ok]
    events = sum(r.output_tokens if r.sampled else len(r.events) for r in measured if r.ok)
    outputs = sum(r.output_tokens for r in measured)
    return Summary(
        load=result.load,
        concurrency=result.concurrency,
        partial=result.partial,
        window=result.window,
        requests=len(measured),
        outcomes=_tally(r.outcome.value for r in measured),
        errors=_tally(r.error for r in measured if r.error)[:5],
        requested_rate=result.requested_rate,
        sent_rate=_sent_rate(measured),
        completed_rate=sum(r.ok for r in ended) / window,
        backlog=backlog(result),
        schedule_delay=_spread(measured, lambda r: r.schedule_delay, seed, resamples),
        ttft=_spread([r for r in measured if r.ok], lambda r: r.ttft, seed, resamples),
        tpot=_spread(measured, lambda r: r.tpot, seed, resamples),
        itl=distribution([r.gaps for r in measured if r.ok], seed=seed, resamples=resamples),
        e2e=_spread(measured, lambda r: r.e2e, seed, resamples),
        output_rate=_output_rate(result, seed, resamples),
        prompt_rate=_prompt_tokens(result) / window,
        prompt_tokens=sum(r.prompt_tokens or 0 for r in measured),
        output_tokens=outputs,
        cached_tokens=sum(c or 0 for c in cached) if any(c is not None for c in cached) else None,
        tokens_per_event=sum(r.output_tokens for r in measured if r.ok) / events if events else 0.0,
        objectives=objectives,
        goodput=_share_met(ended, objectives, seed, resamples, len(ended) / window),
        attained=_share_met(measured, objectives, seed, resamples),
        missed=_missed(measured, objectives),
        replicas=_tally(r.replica for r in measured if r.replica),
        notes=result.notes + _notes(measured),
    )


def _share_met(
    records: Sequence[Record], objectives: Objectives, seed: int, resamples: int, scale: float = 1.0
) -> Estimate:
    """Return the share of requests that met all objectives, times `scale`."""
    met = np.asarray([objectives.met(r) for r in records], dtype=np.float64)
    return mean_estimate(met, seed, resamples, scale) if len(met) else Estimate(0.0)


def _tally(names: Iterable[str]) -> tuple[Tally, ...]:
    return tuple(Tally(name, count) for name, count in Counter(names).most_common())


def _spread(
    records: Sequence[Record], value: Callable[[Record], float | None], seed: int, resamples: int
) -> Distribution | None:
    found = [v for r in records if (v := value(r)) is not None]
    return distribution([np.asarray([v]) for v in found], seed=seed, resamples=resamples)


def _sent_rate(measured: Sequence[Record]) -> float | None:
    times = [r.sent for r in measured if r.turn == 0]
    span = max(times) - min(times) if times else 0.0
    return (len(times) - 1) / span if span > 0 else None


def token_times(result: RunResult) -> tuple[Floats, Floats]:
    """(times, tokens) of all events of all requests: a request's tokens are spread evenly over its events.

    Tokens of a request that failed are counted as its events: the server reported no total.
    """
    times = [np.asarray(r.events, dtype=np.float64) for r in result.records if r.events]
    weights = [
        np.full(len(r.events), (r.output_tokens / len(r.events)) if r.ok else 1.0)
        for r in result.records
        if r.events
    ]
    if not times:
        return np.zeros(0), np.zeros(0)
    return np.concatenate(times), np.concatenate(weights)


def _output_rate(result: RunResult, seed: int, resamples: int) -> Estimate:
    times, tokens = token_times(result)
    if result.window <= 0 or not len(times):
        return Estimate(0.0)
    slices, _ = np.histogram(times, bins=_SLICES, range=(result.start, result.end), weights=tokens)
    return mean_estimate(slices, seed, resamples, _SLICES / result.window)


def _prompt_tokens(result: RunResult) -> int:
    return sum(
        r.prompt_tokens or 0 for r in result.records if r.events and result.start <= r.events[0] <= result.end
    )


def _missed(measured: Sequence[Record], objectives: Objectives) -> tuple[Missed, ...]:
    counted = Counter(name for r in measured for name in objectives.missed(r))
    return tuple(Missed(name, counted[name]) for name in ("outcome", "ttft", "tpot", "e2e") if counted[name])


def _notes(measured: Sequence[Record]) -> tuple[str, ...]:
    notes = []
    whole = [r for r in measured if r.ok]
    silent = sum(not r.events for r in whole)
    if silent:
        notes.append(f"{silent} answers had no visible text: they have no TTFT and count as having missed it")
    uncounted = sum(not r.output_counted for r in whole)
    if uncounted:
        notes.append(f"{uncounted} answers came without usage: their tokens are counted as events")
    other = [r for r in whole if r.output_counted and r.output_tokens != r.asked_output]
    if other:
        notes.append(f"{len(other)} of {len(whole)} answers had another length than asked for")
    return tuple(notes)
