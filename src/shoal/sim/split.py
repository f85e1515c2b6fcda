"""Prefill on one replica, decode on another, in virtual time: what `fleet.gateway.split` does by HTTP.

    decode lease ─► prefill leg (1 token) ─► blocks are held ─► fetched over the network ─► decode leg ─► released

What is split, and what follows when a prefill fails, is `policy.split`'s to say; `sim.handoffs` moves the blocks.
Those that no decode leg takes are fetched and dropped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.policy.batching import ChainHasher, CountedRequest, RequestRefused
from shoal.policy.dispatch import Placed
from shoal.policy.outcomes import Outcome
from shoal.policy.replicas import ReplicaAccounts
from shoal.policy.routing import NoReplica, Router
from shoal.policy.split import HandoffCounts, SplitPolicy
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.handoffs import Handovers
from shoal.sim.legs import Fetch, Leg, Offer, SimulatedAccount, SplitLeg

_RELEASE = nanoseconds(10.0)
"""The gateway waits so long for a release; `fleet.gateway.split`'s."""


class Legs(Protocol):
    """What a splitter asks of its gateway."""

    fleet: SimulatedFleet
    accounts: ReplicaAccounts[SimulatedAccount]
    router: Router

    def enter(self, leg: Leg) -> Leg: ...
    def open(self, leg: Leg, time: int) -> None: ...
    def end_leg(self, leg: Leg, outcome: Outcome, why: str, time: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Release:
    """Held blocks are fetched and dropped, by a request whose answer nobody reads."""

    number: int
    taker: SimulatedAccount
    fetch: Fetch | None = None


class SimulatedSplitter:
    """The prefill side of requests, and the blocks that cross."""

    def __init__(self, gateway: Legs, events: Events, hasher: ChainHasher) -> None:
        self.counts = HandoffCounts()
        self._gateway, self._events, self._hasher = gateway, events, hasher
        self._policy = SplitPolicy(gateway.fleet.split)
        self.handovers = Handovers(gateway.fleet, events)
        self._releases: dict[int, _Release] = {}
        self._number = 0

    # Prefill legs

    def splits(self, leg: Leg) -> bool:
        """Whether a leg's prompt is to be computed elsewhere."""
        return leg.ask.first is None and self._policy.wants(leg.account.state, leg.route)

    def prefill(self, leg: Leg, time: int) -> None:
        """Have the prompt of a leg computed elsewhere, or let it be sent as it is."""
        now, split = time / NANOSECONDS, leg.split
        if split is None:
            hashes = tuple(leg.route.blocks) or self._hasher.chain(leg.ask.pieces, leg.ask.prompt)
            split = leg.split = SplitLeg(hashes)
        wanted = self._policy.prefill_request(leg.route)
        if split.prefill is not None:
            before = split.prefill
            wanted.excluded = before.route.excluded | {before.account.name}
        split.prefill = None
        accounts = self._gateway.accounts
        decision = self._gateway.router.route(wanted, accounts.states(now), now)
        if isinstance(decision, NoReplica):
            self._open(leg, time)
            return
        placed = Placed(decision, accounts.take(decision, wanted, streams=False, now=now))
        account = accounts.get(decision.replica)
        split.attempts += 1
        leg.placed.lease.quiet_until = math.inf
        made = Leg(0, leg.ask, wanted, placed, account, 0, time, of=leg, split=SplitLeg(split.hashes))
        split.prefill = self._gateway.enter(made)
        wait = nanoseconds(self._policy.config.prefill_seconds)
        self._events.at(
            time + wait, lambda t: self._gateway.end_leg(made, Outcome.DEADLINE, "no prefill in time", t)
        )
        self._gateway.open(made, time)

    def _open(self, leg: Leg, time: int) -> None:
        """Send a leg whose prompt is ready, or is to be computed where it goes."""
        assert leg.split is not None
        leg.placed.lease.quiet_until = self._policy.quiet_until(leg.split.offer is not None, time / NANOSECONDS)
        if leg.split.killed is None:
            self._gateway.open(leg, time)
        else:
            self._gateway.end_leg(leg, *leg.split.killed, time)

    @staticmethod
    def ends_later(leg: Leg, outcome: Outcome, why: str) -> bool:
        """Whether what ends a leg is noticed only when it is sent: its prompt is being computed elsewhere."""
        if leg.split is None or leg.split.prefill is None:
            return False
        leg.split.killed = outcome, why
        return True

    def prefilled(self, made: Leg, time: int) -> None:
        """A prefill leg is answered; its lease is released by now."""
        leg = made.of
        assert leg is not None
        assert leg.split is not None
        leg.split.prefill = None
        offer = self.handovers.offer(made.account.name, made.number)
        if offer is not None:
            # Else the prompt was too short to fill a block.
            self.counts.handed += 1
            leg.split.offer, leg.split.cached = offer, offer.cached
        self._open(leg, time)

    def failed(self, made: Leg, outcome: Outcome, why: str, time: int) -> None:
        """A prefill leg has failed; its lease is released by now."""
        leg = made.of
        assert leg is not None
        assert leg.split is not None
        step = self._policy.after_failure(outcome, leg.split.attempts)
        if step == "retry":
            self.prefill(leg, time)
            return
        leg.split.prefill = None
        if step == "whole":
            self._open(leg, time)
        else:
            self._gateway.end_leg(leg, outcome, why, time)

    def took(self, leg: Leg) -> int | None:
        """A leg answers: the blocks are with it. Prompt tokens its prefill had cached; None: there was none."""
        if leg.split is None:
            return None
        if leg.split.offer is not None:
            leg.split.offer = None
            self.counts.taken += 1
        return leg.split.cached

    def close(self, leg: Leg, time: int) -> None:
        """A leg is over: what was handed to it and not taken is fetched and dropped."""
        split = leg.split
        if split is None:
            return
        if split.fetch is not None and not split.fetch.over:
            self.handovers.break_off(split.fetch, time)
        offer, split.offer = split.offer, None
        if offer is not None:
            self._abandon(leg, offer, time)

    def take_over(self, leg: Leg, then: Callable[[int], None], time: int) -> None:
        """Fetch the blocks that a leg was handed, then go on."""
        split = leg.split
        if split is None or split.offer is None:
            then(time)
            return
        split.fetch = self.handovers.fetch(split.offer, leg.account, split.hashes, then, time)

    # No decode leg comes

    def _abandon(self, leg: Leg, offer: Offer, time: int) -> None:
        taker = leg.account
        assert leg.split is not None
        if not taker.replica.up or taker.cut_off:
            self.counts.lost += 1
            return
        self._number -= 1
        release = self._releases[self._number] = _Release(self._number, taker)
        hashes, ask = leg.split.hashes, leg.ask
        request = CountedRequest(
            id=release.number, pieces=ask.pieces, prompt_length=ask.prompt, max_tokens=1, hashes=hashes
        )
        self._events.at(time + _RELEASE, lambda t: self._lose(release, t))
        release.fetch = self.handovers.fetch(offer, taker, hashes, lambda t: self._drop(release, request, t), time)

    def _drop(self, release: _Release, request: CountedRequest, time: int) -> None:
        try:
            release.taker.replica.submit(request, time)
        except RequestRefused:
            self._lose(release, time)

    def released(self, number: int) -> None:
        """A request of a release has its token; nothing happens for other requests."""
        if self._releases.pop(number, None) is not None:
            self.counts.released += 1

    def _lose(self, release: _Release, time: int) -> None:
        if self._releases.pop(release.number, None) is None:
            return
        self.counts.lost += 1
        if release.fetch is not None and not release.fetch.over:
            self.handovers.break_off(release.fetch, time)
        if release.taker.replica.up:
            release.taker.replica.abort(release.number, time)

    @property
    def releases(self) -> set[int]:
        """Ids of the requests that release something now."""
        return set(self._releases)

    # Faults and books

    def crashed(self, account: SimulatedAccount, time: int) -> None:
        """A replica's process has ended."""
        self.handovers.crashed(account, time)
        for release in [r for r in self._releases.values() if r.taker is account]:
            self._lose(release, time)

    def check(self, legs: Sequence[Leg]) -> None:
        """AssertionError unless every hand-over is accounted for. `legs`: the live ones."""
        held = sum(leg.split is not None and leg.split.offer is not None for leg in legs) + len(self._releases)
        assert self.counts.live == held, f"{self.counts} has {self.counts.live} live hand-overs, {held} are open"
        self.handovers.check(self._gateway.accounts.replicas)
