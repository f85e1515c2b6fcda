"""Limits on what one client may ask for per minute."""

from dataclasses import dataclass

from shoal.policy.admission import Refusal


@dataclass(slots=True)
class _Bucket:
    """Fills at `per_minute` per minute, up to a minute's worth."""

    per_minute: float
    level: float
    at: float = 0.0

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; 0: now. More than a minute's worth may go once it is full."""
        self.level = min(self.per_minute, self.level + (now - self.at) * self.per_minute / 60)
        self.at = now
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing * 60 / self.per_minute)


class RateLimit:
    """One client's limits, each None where there is none. Told the time."""

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self._requests = _bucket(requests_per_minute)
        self._tokens = _bucket(tokens_per_minute)

    def charge(self, tokens: int, now: float) -> Refusal | None:
        """Count a request of about so many tokens; a refusal counts nothing."""
        for bucket, amount, what in ((self._requests, 1, "requests"), (self._tokens, tokens, "tokens")):
            if bucket is not None and (wait := bucket.wait(amount, now)) > 0:
                reason = f"rate limit of this key: {bucket.per_minute:g} {what} a minute"
                return Refusal("rate_limit_exceeded", reason, wait)
        if self._requests is not None:
            self._requests.level -= 1
        self.settle(0, tokens)
        return None

    def settle(self, charged: int, used: int) -> None:
        """Replace the tokens charged for a request by those that it used."""
        if self._tokens is not None:
            self._tokens.level -= used - charged


def _bucket(per_minute: int | None) -> _Bucket | None:
    return _Bucket(float(per_minute), float(per_minute)) if per_minute is not None else None
