"""Why requests were slow: where their time went, and what befell them."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.policy.outcomes import Outcome
from shoal.sim.asks import Ask
from shoal.sim.events import NANOSECONDS
from shoal.workload.objectives import Objectives
from shoal.workload.records import Phase, Record
from shoal.workload.report.document import Section, Table, number

SLOW_SHARE = 0.01
"""Where there are no objectives, so many of the requests count as slow: those with the longest TTFT."""
_SHOWN = 10
_PARTS = ("gateway queue", "replica queue", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Why:
    """One request: seconds by where they went, and why in words."""

    record: Record
    seconds: tuple[float, ...]
    """Of `gateway queue`, `replica queue`, `prefill`, `decode`."""
    text: str
    missed: tuple[str, ...] = ()
    """Objectives that it missed."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by where they went."""
        return dict(zip(_PARTS, self.seconds, strict=True))

    @property
    def main(self) -> str:
        """What made it slow: a fault or a preemption if there was one, else the longest part of what was late."""
        for word in ("fault", "preempted", "refused", "deadline"):
            if word in self.text:
                return word
        if "ttft" in self.missed or not self.missed:
            late: Sequence[str] = _PARTS[:3]
        else:
            late = _PARTS if "e2e" in self.missed else _PARTS[3:]
        return max(late, key=lambda name: self.parts[name])


def why(ask: Ask, record: Record, objectives: Objectives) -> Why:
    """Explain one request."""
    ended = ask.ended if ask.ended is not None else ask.sent
    placed = ask.placed if ask.placed is not None else ended
    begun = ask.begun if ask.begun is not None else (ended if ask.placed is not None else placed)
    first = ask.first if ask.first is not None else ended
    last = ask.last if ask.last is not None else ended
    moments = itertools.accumulate((ask.scheduled, placed, begun, first, last), max)
    seconds = tuple((after - before) / NANOSECONDS for before, after in itertools.pairwise(moments))
    missed = objectives.missed(record) if objectives.any else ()
    return Why(record, seconds, "; ".join(_causes(ask, seconds)), missed)


def _causes(ask: Ask, seconds: Sequence[float]) -> list[str]:
    causes = [f"fault: {fault}" for fault in ask.faults]
    if ask.continued:
        causes.append(f"continued {ask.continued} x")
    if ask.outcome is Outcome.BACKPRESSURE:
        causes.append(f"refused: {ask.error}")
    elif ask.outcome is Outcome.DEADLINE:
        causes.append("deadline passed")
    elif ask.outcome is not Outcome.OK:
        causes.append(ask.error or "not answered")
    if ask.preemptions:
        causes.append(f"preempted {ask.preemptions} x")
    for name, spent in zip(_PARTS[:2], seconds, strict=False):
        if spent >= 0.001:
            causes.append(f"{number(spent)} s in the {name}")
    if ask.cached is not None:
        causes.append(f"{number(seconds[2])} s for prefill of {_prefill(ask)}")
    return causes


def _prefill(ask: Ask) -> str:
    cached = ask.cached or 0
    text = f"{ask.prompt - cached:,} of {ask.prompt:,} tokens"
    if ask.predicted_hit > cached:
        return f"{text}, {ask.predicted_hit - cached:,} expected in the cache had been evicted"
    return text if cached else f"{text}, none cached"


def slow(asks: Sequence[Ask], records: Sequence[Record], objectives: Objectives) -> list[Why]:
    """The measured requests that missed an objective, slowest first.

    Without objectives: those with the longest TTFT, those that a fault hit, and those that failed.
    """
    by_index = {ask.index: ask for ask in asks}
    measured = [r for r in records if r.phase is Phase.MEASURED]
    chosen = [r for r in measured if not objectives.met(r)]
    if not objectives.any:
        timed = sorted((r for r in measured if r.ttft is not None), key=_waited, reverse=True)
        slowest = timed[: max(1, round(len(timed) * SLOW_SHARE))]
        broken = [r for r in measured if by_index[r.index].faults]
        chosen = list({r.index: r for r in (*chosen, *slowest, *broken)}.values())
    return [why(by_index[r.index], r, objectives) for r in sorted(chosen, key=_waited, reverse=True)]


def _waited(record: Record) -> float:
    return (record.ttft if record.ttft is not None else record.ended - record.scheduled) or 0.0


def reasons_section(found: Sequence[Why], objectives: Objectives) -> Section | None:
    """A report's section on slow requests: causes counted, and the slowest one by one."""
    if not found:
        return None
    counts = Counter(w.main for w in found)
    if objectives.any:
        text = f"Requests that missed an objective: {len(found):,}."
    else:
        text = f"Requests that are the slowest {SLOW_SHARE:.0%}, were hit by a fault, or failed: {len(found):,}."
    causes = Table(
        ("main cause", "requests", "share"),
        tuple((name, f"{count:,}", f"{count / len(found):.0%}") for name, count in counts.most_common()),
    )
    rows = tuple(
        (
            f"{w.record.index:,}",
            number(w.record.scheduled),
            _milliseconds(w.record.ttft),
            _milliseconds(w.record.e2e),
            w.record.replica or "–",
            w.text or "decode",
        )
        for w in found[:_SHOWN]
    )
    slowest = Table(("request", "at s", "TTFT ms", "E2E ms", "replica", "why"), rows, "The slowest", words=True)
    return Section("Why", text, (causes, slowest))


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else number(seconds * 1e3)
