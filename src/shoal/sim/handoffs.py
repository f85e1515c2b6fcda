"""Blocks that cross from one simulated replica to another: what `engine.handoff` does by sockets.

The holder keeps blocks until they are fetched, or for so long. The taker never fails for want of them: what is
missing, late or has no room is computed there.
"""

from collections.abc import Callable, Sequence

from shoal.policy.batching.request import SequenceState
from shoal.sim.events import Events, nanoseconds
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.legs import Fetch, Leg, Offer, SimulatedAccount
from shoal.sim.network import Network

_HELD = nanoseconds(30.0)
"""Blocks that nobody fetches are held so long; this and the next two are `engine.handoff`'s."""
_SILENCE = nanoseconds(10.0)
"""A taker or holder that says nothing for so long is gone."""
_TRANSFER = nanoseconds(60.0)
"""A transfer that takes longer is given up."""
_ROUND_TRIPS = 3
"""Before the first block: connect, ask, want."""


class Handovers:
    """All blocks that are held for others, and all that are under way."""

    def __init__(self, fleet: SimulatedFleet, events: Events) -> None:
        self.network = Network(events)
        self.whole = self.broken_off = 0
        """Fetches that brought all blocks, and that didn't."""
        self._events = events
        self._latency = nanoseconds(fleet.link_latency)
        self._offers: dict[tuple[str, int], Offer] = {}
        self._fetches: dict[Fetch, None] = {}
        for spec in fleet.replicas:
            self.network.add(spec.name, spec.link_bytes or fleet.link_bytes)

    # The holder

    def offered(self, leg: Leg, sequence: SequenceState, time: int) -> None:
        """A prefill leg has ended at its replica."""
        scheduler = leg.account.replica.scheduler
        held = scheduler.handoffs.get(sequence.id)
        if held is not None:
            offer = Offer(leg.account, scheduler, held, sequence.cached_tokens)
            self._offers[leg.account.name, sequence.id] = offer
            self._events.at(time + _HELD, lambda t: self._expire(offer, t))

    def offer(self, replica: str, request: int) -> Offer | None:
        """What is held of a request; None: nothing."""
        return self._offers.get((replica, request))

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

    def fetch(
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
            self.whole += 1
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

    def break_off(self, fetch: Fetch, time: int) -> None:
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
            self.break_off(fetch, time)
            fetch.then(time)

    # Faults

    def crashed(self, account: SimulatedAccount, time: int) -> None:
        """A replica's process has ended, with all that it held and sent."""
        self.network.stand_still(account.name, False, time)
        for fetch in [f for f in self._fetches if f.taker is account]:
            self.break_off(fetch, time)
        for offer in [o for o in self._offers.values() if o.account is account]:
            offer.over = True
            del self._offers[account.name, offer.held.sequence_id]
        for fetch in [f for f in self._fetches if f.offer.account is account]:
            self._give_up(fetch, time)

    def stopped(self, account: SimulatedAccount, time: int) -> None:
        """A replica's process neither reads nor writes."""
        self.network.stand_still(account.name, True, time)
        for fetch in self._fetches:
            if account in (fetch.offer.account, fetch.taker):
                self._await_silence(fetch, account, time)

    def resumed(self, account: SimulatedAccount, time: int) -> None:
        """It does again."""
        self.network.stand_still(account.name, False, time)

    def _await_silence(self, fetch: Fetch, account: SimulatedAccount, time: int) -> None:
        self._events.at(
            time + _SILENCE, lambda t: self._give_up(fetch, t) if account.replica.hangs and not fetch.over else None
        )

    # Books

    def check(self, accounts: Sequence[SimulatedAccount]) -> None:
        """AssertionError unless what is held is what was offered, and every transfer has its fetch."""
        for account in accounts:
            if not account.replica.up:
                continue
            held = set(account.replica.scheduler.handoffs.held)
            mine = {number for name, number in self._offers if name == account.name}
            assert held == mine, f"{account.name} holds blocks of {sorted(held)}, offered are {sorted(mine)}"
        sending = sum(fetch.transfer is not None for fetch in self._fetches)
        assert self.network.transfers == sending, f"{self.network.transfers} transfers for {sending} fetches"
