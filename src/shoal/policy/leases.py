"""One lease per request leg: taken when a replica is selected, released exactly once with the leg's outcome.

Load is what leases say; nothing else counts requests. There is no reaper: a lease lives as long as its leg, and
every leg has a deadline.

    taken == released + live          Σ over replicas of inflight == live
"""

from collections.abc import Callable
from typing import Protocol

from shoal.policy.outcomes import LegFailed, Outcome


class LeaseError(AssertionError):
    """A lease was released twice: a bug of the caller."""


class Holder(Protocol):
    """The account of the replica that a lease is on."""

    name: str
    last_progress: float
    """Time of the last output from it."""

    def on_taken(self, lease: "Lease") -> None: ...
    def on_first_token(self, lease: "Lease") -> None: ...
    def on_released(self, lease: "Lease") -> None: ...


class Lease:
    """A claim on a replica: the work that was predicted for it when it was selected."""

    __slots__ = (
        "_ledger",
        "ahead",
        "counted",
        "decoding",
        "era",
        "first_at",
        "holder",
        "kill",
        "last_at",
        "outcome",
        "output_tokens",
        "prompt_tokens",
        "quiet_until",
        "request_id",
        "streams",
        "taken_at",
        "tokens",
        "uncached",
    )

    def __init__(
        self,
        ledger: "Ledger",
        holder: Holder,
        request_id: str,
        *,
        uncached: float,
        prompt_tokens: int,
        output_tokens: int,
        streams: bool,
        now: float,
    ) -> None:
        self._ledger = ledger
        self.holder = holder
        self.request_id = request_id
        self.uncached = uncached
        """Prompt tokens that the replica is expected to compute."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.streams = streams
        """Whether tokens are visible as they are generated."""
        self.taken_at = now
        self.quiet_until = now
        """Before it silence says nothing of the replica: the prompt is computed elsewhere, or its KV is fetched."""
        self.first_at: float | None = None
        self.last_at = now
        self.tokens = 0
        """Pieces of output seen."""
        self.ahead = 0.0
        """Prompt tokens that waited at the replica when the lease was taken."""
        self.counted = 0
        """Output tokens that the engine counted, for legs without a stream."""
        self.decoding = False
        """Its prompt is computed, or should be by now."""
        self.era = 0
        """What `Breaker.admit` returned; `Breaker.record` takes it back."""
        self.outcome: Outcome | None = None
        self.kill: Callable[[LegFailed], None] | None = None
        """Ends the leg from outside; set by whoever runs the leg."""
        ledger.open(self)

    def progress(self, now: float) -> None:
        """Record a piece of output at `now`."""
        self.last_at = self.holder.last_progress = now
        self.tokens += 1
        if self.first_at is None:
            self.first_at = now
            self.holder.on_first_token(self)

    def release(self, outcome: Outcome, now: float) -> None:
        """End the lease with the outcome of its leg. `LeaseError` if it has ended already."""
        if self.outcome is not None:
            raise LeaseError(f"lease of {self.request_id} on {self.holder.name} released twice")
        self.outcome = outcome
        self.last_at = now
        self.kill = None
        self._ledger.close(self)


class Ledger:
    """Every live lease of one gateway, and how many were taken and released."""

    def __init__(self) -> None:
        self.taken = 0
        self.released: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._live: dict[str, dict[Lease, None]] = {}

    def open(self, lease: Lease) -> None:
        """Count a lease as taken; for `Lease` only."""
        self.taken += 1
        self._live.setdefault(lease.holder.name, {})[lease] = None
        lease.holder.on_taken(lease)

    def close(self, lease: Lease) -> None:
        """Count a lease as released; for `Lease.release` only."""
        assert lease.outcome is not None
        live = self._live[lease.holder.name]
        del live[lease]
        if not live:
            del self._live[lease.holder.name]
        self.released[lease.outcome] += 1
        lease.holder.on_released(lease)

    def live(self, replica: str | None = None) -> int:
        if replica is not None:
            return len(self._live.get(replica, ()))
        return sum(len(leases) for leases in self._live.values())

    def leases(self, replica: str) -> list[Lease]:
        """Return the live leases on a replica, oldest first."""
        return list(self._live.get(replica, ()))

    def check(self) -> None:
        """Raise `AssertionError` unless `taken == released + live`."""
        released = sum(self.released.values())
        assert self.taken == released + self.live(), f"{self.taken} taken, {released} released, {self.live()} live"
