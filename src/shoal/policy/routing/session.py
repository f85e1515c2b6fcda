"""Session affinity with bounded load: one conversation, one replica, unless that one has more than its share.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018): clockwise from the session's
point, the first replica whose load is at most `bound` times the mean takes it.
"""

import bisect
import hashlib
import math

from shoal.policy.routing.contracts import ReplicaState, RouteRequest
from shoal.policy.routing.draws import Draws
from shoal.policy.routing.pickers import Least, Picked, Scored

_POINTS = 64
"""Points on the ring a replica: shares then differ by about 1/√64."""
_LEAST = 2


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class SessionRing:
    """A picker. Requests without a session go where the score is least: hashing nothing would send all to one."""

    def __init__(self, draws: Draws, bound: float = 1.25) -> None:
        if not bound > 1:
            raise ValueError(f"bound is {bound}; it must be greater than 1")
        self._bound = bound
        self._least = Least(draws)
        self._names: frozenset[str] = frozenset()
        self._ring: list[tuple[int, str]] = []

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        if request.session is None:
            score, replica, why = self._least.pick(request, scored, now)
            return score, replica, f"no session: {why}"
        by_name = {replica.name: (score, replica) for score, replica in scored}
        self._build(by_name)
        # One request in flight is no load to flee from, however idle the others are.
        limit = max(_LEAST, math.ceil(self._bound * (sum(r.load for _, r in scored) + 1) / len(scored)))
        start = bisect.bisect(self._ring, (_point(request.session), ""))
        skipped = 0
        seen: set[str] = set()
        for step in range(len(self._ring)):
            name = self._ring[(start + step) % len(self._ring)][1]
            if name in seen:
                continue
            seen.add(name)
            score, replica = by_name[name]
            if replica.load < limit:
                return score, replica, f"session, {skipped} full before it" if skipped else "session"
            skipped += 1
        raise AssertionError("loads below the bound times their mean exist by construction")

    def forget(self, replica: str) -> None:
        self._least.forget(replica)

    def _build(self, by_name: dict[str, tuple[float, ReplicaState]]) -> None:
        names = frozenset(by_name)
        if names != self._names:
            self._names = names
            self._ring = sorted((_point(f"{name}#{i}"), name) for name in by_name for i in range(_POINTS))
