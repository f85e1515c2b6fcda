"""Session affinity with bounded load: one conversation, one replica, unless that one has more than its share.

Rendezvous hashing (Thaler, Ravishankar, 1998): every replica has a score for the session, and the best takes it.
Shares are even for any names, which points on a ring are not (61:39 over two replicas), and a replica that comes or
goes moves only its own sessions. One whose load exceeds `bound` times the mean is passed over for the next best
(bounded loads: Mirrokni, Thorup, Zadimoghaddam, SODA 2018).
"""

import hashlib
import math

from shoal.policy.routing.contracts import NO_NEEDS, RouteRequest
from shoal.policy.routing.draws import Draws
from shoal.policy.routing.pickers import Least, Picked, Scored

_MIN_LIMIT = 2


def _score(session: str, replica: str) -> int:
    data = session.encode("utf-8", "surrogatepass") + b"\0" + replica.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class SessionAffinity:
    """A picker. Requests without a session go where the score is least: hashing nothing would send all to one."""

    needs = NO_NEEDS

    def __init__(self, draws: Draws, bound: float = 1.25) -> None:
        if not bound > 1:
            raise ValueError(f"bound is {bound}; it must be greater than 1")
        self._bound = bound
        self._least = Least(draws)

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        session = request.session
        if session is None:
            score, replica, why = self._least.pick(request, scored, now)
            return score, replica, f"no session: {why}"
        # One request in flight is no load to flee from, however idle the others are.
        mean = (sum(replica.load for _, replica in scored) + 1) / len(scored)
        limit = max(_MIN_LIMIT, math.ceil(self._bound * mean))
        ranked = sorted(scored, key=lambda item: _score(session, item[1].name), reverse=True)
        for skipped, (score, replica) in enumerate(ranked):
            if replica.load < limit:
                return score, replica, f"session, {skipped} full before it" if skipped else "session"
        raise AssertionError("loads below the bound times their mean exist by construction")

    def forget(self, replica: str) -> None:
        self._least.forget(replica)
