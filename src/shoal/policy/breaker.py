"""Passive health of one replica, from the outcomes of its legs: closed → open → half-open → closed.

Only faults open it, and only a success closes it again. What a client did wrong, and a replica's "too busy", say
nothing about its health: they neither open a breaker nor close a half-open one.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from shoal.policy.outcomes import MEANINGS, Outcome

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    consecutive: int = 3
    """Faults in a row that open it."""
    share: float = 0.5
    """Or this share of faults among what counts (successes and faults) within the window…"""
    at_least: int = 20
    """…once so many count."""
    window_seconds: float = 10.0
    open_seconds: float = 1.0
    """How long it stays open the first time; doubled for every probe that fails."""
    open_seconds_max: float = 30.0
    probes: int = 1
    """Legs at a time that a half-open breaker lets through."""


class Breaker:
    """One replica's breaker. `admit` when a leg starts, `record` once with what `admit` returned when it ends."""

    def __init__(self, config: BreakerConfig | None = None) -> None:
        self._config = config or BreakerConfig()
        self._recent: deque[tuple[float, bool]] = deque()
        self._faults_recent = 0
        self._row = 0
        self._opened_at = 0.0
        self._open_for = self._config.open_seconds
        self._open = False
        self._probing = 0
        self._era = 0
        self.opened = 0
        """Times it opened since the start."""

    def state(self, now: float) -> BreakerState:
        if not self._open:
            return "closed"
        return "half_open" if now >= self._opened_at + self._open_for else "open"

    @property
    def closed(self) -> bool:
        return not self._open

    def allows(self, now: float) -> bool:
        """Whether a leg may start now."""
        if not self._open:
            return True
        return now >= self._opened_at + self._open_for and self._probing < self._config.probes

    def seconds_to_probe(self, now: float) -> float:
        """Seconds until it lets something through; 0 if it does now."""
        return max(0.0, self._opened_at + self._open_for - now) if self._open else 0.0

    def configure(self, config: BreakerConfig) -> None:
        """Go by other bounds from now on; a breaker that is open stays so for as long as it was to."""
        self._config = config
        if not self._open:
            self._open_for = config.open_seconds

    def admit(self, now: float) -> int:
        """A leg starts; the number goes back to `record`, which so knows legs from before it opened."""
        if self._open:
            self._probing += 1
        return self._era

    def record(self, outcome: Outcome, now: float, era: int) -> None:
        sign = MEANINGS[outcome].breaker
        if self._open:
            if era != self._era:
                # Started before it opened: old news, good or bad.
                return
            self._probing = max(0, self._probing - 1)
            if sign == "success":
                self._close()
            elif sign == "fault":
                self._open_for = min(self._open_for * 2, self._config.open_seconds_max)
                self._trip(now)
            return
        if sign == "nothing" or era != self._era:
            return
        self._note(sign == "fault", now)

    def trip(self, now: float) -> None:
        """Open it from outside: a hang, a failed active check."""
        if not self._open:
            self._trip(now)

    def _note(self, fault: bool, now: float) -> None:
        config = self._config
        self._recent.append((now, fault))
        self._faults_recent += fault
        while self._recent and self._recent[0][0] < now - config.window_seconds:
            self._faults_recent -= self._recent.popleft()[1]
        self._row = self._row + 1 if fault else 0
        counted = len(self._recent)
        if self._row >= config.consecutive or (
            fault and counted >= config.at_least and self._faults_recent >= config.share * counted
        ):
            self._trip(now)

    def _trip(self, now: float) -> None:
        self._open = True
        self._opened_at = now
        self._era += 1
        self._probing = 0
        self.opened += 1

    def _close(self) -> None:
        self._open = False
        self._era += 1
        self._row = 0
        self._recent.clear()
        self._faults_recent = 0
        self._open_for = self._config.open_seconds
