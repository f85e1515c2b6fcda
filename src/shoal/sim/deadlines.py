"""Clients that give up: one event for the deadlines of many requests, which mostly come in order."""

from collections import deque
from collections.abc import Callable

from shoal.sim.asks import Ask
from shoal.sim.events import Events


class Deadlines:
    """Tells of requests whose deadline has passed."""

    def __init__(self, events: Events, cancel: Callable[[Ask, int], None]) -> None:
        """`cancel` is told of each request at its deadline, or of one whose fate is known."""
        self._events = events
        self._cancel = cancel
        self._asks: deque[Ask] = deque()

    def add(self, ask: Ask) -> None:
        """Let the client give up at its deadline."""
        if self._asks and ask.deadline < self._asks[-1].deadline:
            self._events.at(ask.deadline, lambda t: self._cancel(ask, t))
            return
        self._asks.append(ask)
        if len(self._asks) == 1:
            self._events.at(ask.deadline, self._on_deadline)

    def _on_deadline(self, time: int) -> None:
        asks = self._asks
        while asks and (asks[0].outcome is not None or asks[0].deadline <= time):
            self._cancel(asks.popleft(), time)
        if asks:
            self._events.at(asks[0].deadline, self._on_deadline)
