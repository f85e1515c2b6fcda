"""The clock of a simulation: calls at integer nanoseconds, in one heap."""

import heapq
from collections.abc import Callable

NANOSECONDS = 10**9
Call = Callable[[int], None]
"""What happens; told the time in nanoseconds."""

_STEP, _OTHER = 0, 1


def nanoseconds(seconds: float) -> int:
    """Return a time or duration as an integer."""
    return round(seconds * NANOSECONDS)


class Events:
    """Calls in order of time; at equal times the ends of steps first, then in order of scheduling.

    That order makes a step which ends just when a request arrives begin its successor without it, whether steps
    are simulated one by one or many at once.
    """

    def __init__(self) -> None:
        self.now = 0
        """Nanoseconds since the start."""
        self.done = 0
        """Calls made."""
        self._stop: Callable[[], bool] = lambda: False
        self._heap: list[tuple[int, int, int, Call]] = []
        self._order = 0

    def at(self, time: int, call: Call) -> None:
        """Make a call at `time`, which must not be past."""
        self._order += 1
        heapq.heappush(self._heap, (time, _OTHER, self._order, call))

    def at_step_end(self, time: int, call: Call) -> None:
        """Make the call that ends a step."""
        self._order += 1
        heapq.heappush(self._heap, (time, _STEP, self._order, call))

    def stop_when(self, over: Callable[[], bool]) -> None:
        """Let `run` return once `over` says so."""
        self._stop = over

    def run(self, until: int) -> None:
        """Make all calls up to `until`, which is then the time; unless it is stopped before."""
        heap, stop = self._heap, self._stop
        while heap and heap[0][0] <= until:
            self.now, _, _, call = heapq.heappop(heap)
            self.done += 1
            call(self.now)
            if stop():
                return
        self.now = until
