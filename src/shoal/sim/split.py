"""Prefill on one replica, decode on another, in virtual time: what `fleet.split` and `engine.handoff` do by sockets.

    decode lease ─► prefill leg (1 token) ─► blocks are held ─► fetched over the network ─► decode leg ─► released

What is split, and what follows when a prefill fails, is `policy.split`'s to say. The holder keeps blocks until they
are fetched, or for so long; the taker never fails for want of them: what is missing is computed there. Blocks that
no decode leg takes are fetched and dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.policy.batching import ChainHasher, CountedRequest, RequestRefused
from shoal.policy.batching.request import SequenceState
from shoal.policy.dispatch import Placed
from shoal.policy.outcomes import Outcome
from shoal.policy.replicas import ReplicaAccounts
from shoal.policy.routing import NoReplica, Router
from shoal.policy.split import HandoffCounts, SplitPolicy
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.legs import Fetch, Leg, Offer, SimulatedAccount, SplitLeg
from shoal.sim.network import Network

_HELD = nanoseconds(30.0)
"""Blocks that nobody fetches are held so long; this and the next two are `engine.handoff`'s."""
_SILENCE = nanoseconds(10.0)
"""A taker or holder that says nothing for so long is gone."""
_TRANSFER = nanoseconds(60.0)
"""A transfer that takes longer is given up."""
_RELEASE = nanoseconds(10.0)
"""The gateway waits so long for a release; `fleet.split`'s."""
_ROUND_TRIPS = 3
"""Before the first block: connect, ask, want."""


@dataclass(slots=True, eq=False)
class _Release:
    """Held blocks are fetched and dropped, by a request whose answer nobody reads."""

    number: int
    taker: SimulatedAccount
    fetch: Fetch | None = None


class SimulatedSplitter:
    """The prefill side of requests, and the blocks that cross."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        accounts: ReplicaAccounts[SimulatedAccount],
        router: Router,
        events: Events,
        hasher: ChainHasher,
    ) -> None:
        self.counts = HandoffCounts()
        self.transfers = self.broken_off = 0
        """Fetches that brought all blocks, and that didn't."""
        self.network = Network(events)
        self._accounts, self._router, self._events, self._hasher = accounts, router, events, hasher
        self._policy = SplitPolicy(fleet.split)
        self._latency = nanoseconds(fleet.link_latency)
        self._offers: dict[tuple[str, int], Offer] = {}
        self._fetches: dict[Fetch, None] = {}
        self._releases: dict[int, _Release] = {}
        self._number = 0
        self.begin: Callable[[Leg, int], None] = lambda leg, time: None
        """Sends a prefill leg; these three are the gateway's."""
        self.open: Callable[[Leg, int], None] = lambda leg, time: None
        """Sends a leg whose prompt is ready, or won't be."""
        self.end: Callable[[Leg, Outcome, str, int], None] = lambda leg, outcome, why, time: None

    # Prefill legs

    def splits(self, leg: Leg) -> bool:
        """Whether a leg's prompt is to be computed elsewhere."""
        return leg.ask.first is None and self._policy.wants(leg.account.state, leg.route)

    def prefill(self, leg: Leg, time: int) -> None:
        """Have the prompt of a leg computed elsewhere, or let it be sent as it is."""
        ask, now = leg.ask, time / NANOSECONDS
        split = leg.split
        if split is None:
            hashes = tuple(leg.route.blocks) or self._hasher.chain(ask.pieces, ask.prompt)
            split = leg.split = SplitLeg(hashes)
        wanted = self._policy.prefill_request(leg.route)
        if split.prefill is not None:
            before = split.prefill
            wanted.excluded = before.route.excluded | {before.account.name}
        split.prefill = None
        decision = self._router.route(wanted, self._accounts.states(now), now)
        if isinstance(decision, NoReplica):
            self.open(leg, time)
            return
        lease = self._accounts.take(decision, wanted, streams=False, now=now)
        account = self._accounts.get(decision.replica)
        split.attempts += 1
        made = Leg(0, ask, wanted, Placed(decision, lease), account, 0, time, of=leg, split=SplitLeg(split.hashes))
        split.prefill = made
        wait = nanoseconds(self._policy.config.prefill_seconds)
        self._events.at(time + wait, lambda t: self.end(made, Outcome.DEADLINE, "no prefill in time", t))
        self.begin(made, time)

    def prefilled(self, made: Leg, time: int) -> None:
        """A prefill leg is answered; its lease is released by now."""
        leg = made.of
        assert leg is not None
        assert leg.split is not None
        leg.split.prefill = None
        offer = self._offers.get((made.account.name, made.number))
        if offer is not None:
            # Else the prompt was too short to fill a block.
            self.counts.handed += 1
            leg.split.offer, leg.split.cached = offer, offer.cached
        self.open(leg, time)

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
            self.open(leg, time)
        else:
            self.end(leg, outcome, why, time)

    def took(self, leg: Leg) -> None:
        """A leg begins to answer: the blocks are with it."""
        if leg.split is not None and leg.split.offer is not None:
            leg.split.offer = None
            self.counts.taken += 1

    def close(self, leg: Leg, time: int) -> None:
        """A leg is over: what was handed to it and not taken is fetched and dropped."""
        split = leg.split
        if split is None:
            return
        if split.fetch is not None and not split.fetch.over:
            self._break_off(split.fetch, time)
        offer, split.offer = split.offer, None
        if offer is not None:
            self._abandon(leg, offer, time)

    # The holder

    def offered(self, leg: Leg, sequence: SequenceState, time: int) -> None:
        """A prefill leg has ended at its replica."""
        scheduler = leg.account.replica.scheduler
        held = scheduler.handoffs.get(sequence.id)
        if held is not None:
            offer = Offer(leg.account, scheduler, held, sequence.cached_tokens)
            self._offers[leg.account.name, sequence.id] = offer
            self._events.at(time + _HELD, lambda t: self._expire(offer, t))

    def _expire(self, offer: Offer, time: int) -> None:
        if offer.sending:
            offer.overdue = True
        else:
            self._let_go(offer, time)

    def _let_go(self, offer: Offer, time: int) -> None:
        if offer.over:
            return
        offer.over = True
        name, number = offer.account.name, offer.held.sequence_id
        del self._offers[name, number]
        if offer.scheduler is offer.account.replica.scheduler:
            offer.account.replica.release_held(number, time)

    # The taker

    def take_over(self, leg: Leg, then: Callable[[int], None], time: int) -> None:
        """Fetch the blocks that a leg was handed, then go on."""
        split = leg.split
        if split is None or split.offer is None:
            then(time)
            return
        split.fetch = self._fetch(split.offer, leg.account, split.hashes, then, time)

    def _fetch(
        self,
        offer: Offer,
        taker: SimulatedAccount,
        hashes: tuple[bytes, ...],
        then: Callable[[int], None],
        time: int,
    ) -> Fetch:
        fetch = Fetch(offer, taker, hashes, taker.replica.known(hashes, time), then)
        self._fetches[fetch] = None
        self._events.at(time + 2 * _ROUND_TRIPS * self._latency, lambda t: self._send(fetch, t))
        self._events.at(time + _TRANSFER, lambda t: self._give_up(fetch, t))
        return fetch

    def _send(self, fetch: Fetch, time: int) -> None:
        offer, taker = fetch.offer, fetch.taker
        if fetch.over:
            return
        if offer.over:
            self._give_up(fetch, time)
            return
        offer.sending += 1
        missing = max(0, len(offer.held.blocks) - fetch.known)
        size = missing * self._block_bytes(offer)
        fetch.transfer = self.network.begin(
            offer.account.name, taker.name, size, lambda t: self._arrived(fetch, t), time
        )
        for account in (offer.account, taker):
            if account.replica.hangs:
                self._await_silence(fetch, account, time)

    @staticmethod
    def _block_bytes(offer: Offer) -> float:
        spec = offer.account.spec
        return spec.kv_token_bytes * spec.scheduler.block_size

    def _arrived(self, fetch: Fetch, time: int) -> None:
        fetch.over = True
        del self._fetches[fetch]
        offer = fetch.offer
        offer.sending -= 1
        missing = max(0, len(offer.held.blocks) - fetch.known)
        if self._store(fetch, missing, time):
            self.transfers += 1
            self._events.at(time + self._latency, lambda t: self._let_go(offer, t))
        else:
            self.broken_off += 1
            self._settle(offer, time)
        fetch.then(time)

    @staticmethod
    def _store(fetch: Fetch, count: int, time: int) -> bool:
        """Put blocks that have arrived into the cache; whether there was room for all."""
        return fetch.taker.replica.import_blocks(fetch.hashes, fetch.known, count, time) == count

    def _settle(self, offer: Offer, time: int) -> None:
        """A transfer broke off: the holder keeps the blocks while their time lasts."""
        if offer.overdue and not offer.sending:
            self._let_go(offer, time)

    def _break_off(self, fetch: Fetch, time: int) -> None:
        """End a fetch; what has come is used."""
        fetch.over = True
        del self._fetches[fetch]
        self.broken_off += 1
        if fetch.transfer is None:
            return
        moved = self.network.stop(fetch.transfer, time)
        each = self._block_bytes(fetch.offer)
        if fetch.taker.replica.up and each and moved >= each:
            self._store(fetch, int(moved // each), time)
        fetch.offer.sending -= 1
        self._settle(fetch.offer, time)

    def _give_up(self, fetch: Fetch, time: int) -> None:
        """The taker computes what it lacks."""
        if not fetch.over:
            self._break_off(fetch, time)
            fetch.then(time)

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
        release.fetch = self._fetch(offer, taker, hashes, lambda t: self._drop(release, request, t), time)

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
            self._break_off(release.fetch, time)
        if release.taker.replica.up:
            release.taker.replica.abort(release.number, time)

    # Faults

    def on_crash(self, account: SimulatedAccount, time: int) -> None:
        """A replica's process has ended, with all that it held and sent."""
        self.network.stand_still(account.name, False, time)
        for fetch in [f for f in self._fetches if f.taker is account]:
            self._break_off(fetch, time)
        for release in [r for r in self._releases.values() if r.taker is account]:
            self._lose(release, time)
        for offer in [o for o in self._offers.values() if o.account is account]:
            offer.over = True
            del self._offers[account.name, offer.held.sequence_id]
        for fetch in [f for f in self._fetches if f.offer.account is account]:
            self._give_up(fetch, time)

    def on_hang(self, account: SimulatedAccount, time: int) -> None:
        """A replica's process neither reads nor writes."""
        self.network.stand_still(account.name, True, time)
        for fetch in self._fetches:
            if account in (fetch.offer.account, fetch.taker):
                self._await_silence(fetch, account, time)

    def on_recovery(self, account: SimulatedAccount, time: int) -> None:
        """It does again."""
        self.network.stand_still(account.name, False, time)

    def _await_silence(self, fetch: Fetch, account: SimulatedAccount, time: int) -> None:
        self._events.at(
            time + _SILENCE, lambda t: self._give_up(fetch, t) if account.replica.hangs and not fetch.over else None
        )

    # Books

    def check(self, legs: list[Leg]) -> None:
        """AssertionError unless every hand-over is accounted for. `legs`: the live ones."""
        open_ = sum(leg.split is not None and leg.split.offer is not None for leg in legs) + len(self._releases)
        counts = self.counts
        assert counts.live == open_, f"{counts} has {counts.live} live hand-overs, {open_} are open"
        for account in self._accounts.replicas:
            if not account.replica.up:
                continue
            held = set(account.replica.scheduler.handoffs.held)
            mine = {number for name, number in self._offers if name == account.name}
            assert held == mine, f"{account.name} holds blocks of {sorted(held)}, offered are {sorted(mine)}"
        sending = sum(fetch.transfer is not None for fetch in self._fetches)
        assert self.network.transfers == sending, f"{self.network.transfers} transfers for {sending} fetches"
