"""One guard for each request leg: taken when a replica is selected, released exactly once with its outcome.

Load is what leases say, never a count that somebody increments here and decrements there. There is no reaper: a
lease lives as long as its leg, and every leg has a deadline.

    taken == released + live          Σ over replicas of inflight == live
"""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_exception


class LeaseError(AssertionError):
    """A lease was released twice: a bug of the caller, never a state to go on from."""


class Holder(Protocol):
    """What a lease weighs on: one replica's account."""

    name: str
    last_progress: float
    """When anything came from it last."""

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
        """Prompt tokens it is expected to compute."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.streams = streams
        """Whether tokens can be seen as they come."""
        self.taken_at = now
        self.first_at: float | None = None
        self.last_at = now
        self.tokens = 0
        """Pieces of output seen."""
        self.ahead = 0.0
        """Prompt tokens that were waiting there before it, when it was taken."""
        self.counted = 0
        """Output tokens that the engine counted, for legs whose output can't be seen coming."""
        self.decoding = False
        """Its prompt is done, or should be."""
        self.era = 0
        """Of the breaker."""
        self.outcome: Outcome | None = None
        self.kill: Callable[[LegFailed], None] | None = None
        """Ends the leg from outside; set by who carries it."""

    def progress(self, now: float) -> None:
        """Output came."""
        self.last_at = self.holder.last_progress = now
        self.tokens += 1
        if self.first_at is None:
            self.first_at = now
            self.holder.on_first_token(self)

    def release(self, outcome: Outcome, now: float) -> None:
        """The leg ended. `LeaseError` if it had ended already."""
        if self.outcome is not None:
            raise LeaseError(f"lease of {self.request_id} on {self.holder.name} released twice")
        self.outcome = outcome
        self.last_at = now
        self.kill = None
        self._ledger.close(self)


class Held:
    """`with` form of a lease: what ends the block is its outcome, unless it was released inside."""

    __slots__ = ("_clock", "lease")

    def __init__(self, lease: Lease, clock: Callable[[], float]) -> None:
        self.lease = lease
        self._clock = clock

    def __enter__(self) -> Lease:
        return self.lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lease.outcome is None:
            outcome = Outcome.OK if error is None else outcome_of_exception(error)
            self.lease.release(outcome, self._clock())


class Ledger:
    """Every live lease of one gateway."""

    def __init__(self) -> None:
        self.taken = 0
        self.released: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._live: dict[str, set[Lease]] = {}

    def take(
        self,
        holder: Holder,
        request_id: str,
        *,
        uncached: float,
        prompt_tokens: int,
        output_tokens: int,
        streams: bool,
        now: float,
    ) -> Lease:
        lease = Lease(
            self,
            holder,
            request_id,
            uncached=uncached,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            streams=streams,
            now=now,
        )
        self.taken += 1
        self._live.setdefault(holder.name, set()).add(lease)
        holder.on_taken(lease)
        return lease

    def close(self, lease: Lease) -> None:
        """For `Lease.release` only."""
        assert lease.outcome is not None
        live = self._live[lease.holder.name]
        live.remove(lease)
        if not live:
            del self._live[lease.holder.name]
        self.released[lease.outcome] += 1
        lease.holder.on_released(lease)

    def live(self, replica: str | None = None) -> int:
        if replica is not None:
            return len(self._live.get(replica, ()))
        return sum(len(leases) for leases in self._live.values())

    def leases(self, replica: str) -> list[Lease]:
        """Those that are live there, oldest first."""
        return sorted(self._live.get(replica, ()), key=lambda lease: lease.taken_at)

    def check(self) -> None:
        """`AssertionError` unless the books balance."""
        released = sum(self.released.values())
        assert self.taken == released + self.live(), f"{self.taken} taken, {released} released, {self.live()} live"
