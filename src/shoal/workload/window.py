"""The measured window of a closed loop: after the warm-up, without a pause, and not before its last answer."""

from shoal.workload.records import Phase


class Window:
    """Which phase a closed loop's next request belongs to."""

    def __init__(self, warmup: int, wanted: int | None, seconds: float | None) -> None:
        self._warmup_left = warmup
        self._wanted = wanted
        self._seconds = seconds
        self._begun = 0
        self._in_flight = 0
        self.opened: float | None = None
        self.finished = False
        """All measured requests have ended."""

    def begin(self, now: float) -> Phase:
        if self._warmup_left > 0:
            return Phase.WARMUP
        if self.opened is None:
            self.opened = now
        if self._full(now):
            return Phase.TAIL
        self._begun += 1
        self._in_flight += 1
        return Phase.MEASURED

    def end(self, phase: Phase, now: float) -> None:
        if phase is Phase.WARMUP:
            self._warmup_left -= 1
        elif phase is Phase.MEASURED:
            self._in_flight -= 1
        if self._begun and not self._in_flight and self._full(now):
            self.finished = True

    def _full(self, now: float) -> bool:
        if self._wanted is not None and self._begun >= self._wanted:
            return True
        return self._seconds is not None and self.opened is not None and now - self.opened >= self._seconds
