"""How many retries a fleet can afford: a share of its recent requests, so that they never double an overload."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RetryBudget:
    """A bucket of tokens: every request puts `share` in, every retry takes one out.

    `floor` tokens are there from the start and return at `floor` per `seconds`, so that a quiet fleet can retry
    too.
    """

    share: float = 0.2
    floor: float = 10.0
    seconds: float = 10.0
    cap: float = 100.0
    _tokens: float = field(init=False)
    _refilled: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"retry share is {self.share}; it must be between 0 and 1")
        self._tokens = self.floor

    def on_request(self, now: float) -> None:
        self._tokens = min(self.cap, self._tokens + self.share)
        self._refill(now)

    def take(self, now: float) -> bool:
        """One retry, if the budget has it."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now: float) -> None:
        since = 0.0 if self._refilled is None else now - self._refilled
        self._refilled = now
        if self._tokens < self.floor:
            self._tokens = min(self.floor, self._tokens + since * self.floor / self.seconds)
