"""The last minute of finished requests, for percentiles and rates that a person can follow."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.observe.view import Latency, Percentiles, Totals

WINDOW_SECONDS = 60.0
_MAX_ENDED = 4096
"""Requests kept; under heavier load the window is shorter than a minute."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One finished request."""

    at: float
    replica: str
    ttft: float | None
    tpot: float | None
    e2e: float | None
    queue: float | None
    prompt_tokens: int
    output_tokens: int
    predicted_hit: int
    actual_hit: int | None


class Window:
    """Owned by one thread."""

    def __init__(self, seconds: float = WINDOW_SECONDS) -> None:
        self.seconds = seconds
        self._ended: deque[Ended] = deque(maxlen=_MAX_ENDED)

    def add(self, ended: Ended) -> None:
        self._ended.append(ended)

    def recent(self, now: float) -> list[Ended]:
        """Those of the window, oldest first."""
        while self._ended and self._ended[0].at < now - self.seconds:
            self._ended.popleft()
        return list(self._ended)

    def span(self, now: float, since: float) -> float:
        """Seconds that the window covers: shorter after a start, and when it is full."""
        begins = max(since, now - self.seconds)
        if len(self._ended) == _MAX_ENDED:
            begins = max(begins, self._ended[0].at)
        return max(1.0, now - begins)


def percentiles(values: Sequence[float | None]) -> Percentiles | None:
    """By nearest rank; None without values."""
    known = sorted(v for v in values if v is not None)
    if not known:
        return None

    def at(share: float) -> float:
        return known[min(len(known) - 1, max(0, -(-int(share * 1000) * len(known) // 1000) - 1))]

    return Percentiles(at(0.5), at(0.9), at(0.99))


def totals(ended: Sequence[Ended], span: float, devices: int, **counts: Any) -> Totals:
    """Rates of the requests that ended within `span` seconds; `counts` are further fields."""
    output = sum(e.output_tokens for e in ended) / span
    return Totals(
        window_seconds=span,
        requests_per_second=len(ended) / span,
        prompt_tokens_per_second=sum(e.prompt_tokens for e in ended) / span,
        output_tokens_per_second=output,
        output_tokens_per_second_device=output / devices if devices else None,
        actual_hit_ratio=hit_ratios(ended)[1],
        **counts,
    )


def latency(ended: Sequence[Ended]) -> Latency:
    return Latency(
        ttft=percentiles([e.ttft for e in ended]),
        tpot=percentiles([e.tpot for e in ended]),
        e2e=percentiles([e.e2e for e in ended]),
        queue=percentiles([e.queue for e in ended]),
    )


def hit_ratios(ended: Sequence[Ended]) -> tuple[float | None, float | None]:
    """Predicted and actual share of prompt tokens reused, over requests whose engine said how many it had."""
    told = [e for e in ended if e.actual_hit is not None and e.prompt_tokens > 0]
    tokens = sum(e.prompt_tokens for e in told)
    if not tokens:
        return None, None
    predicted = sum(min(e.predicted_hit, e.prompt_tokens) for e in told)
    return predicted / tokens, sum(e.actual_hit or 0 for e in told) / tokens
