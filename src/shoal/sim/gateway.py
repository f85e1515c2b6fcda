"""A gateway in virtual time: what `fleet.gateway` does with sockets and tasks, done by events.

Every decision is an object's of `policy/`: where a request goes (`Dispatch`, `Router`), whether it comes in
(`Admission`), what a replica is believed to be (`ReplicaAccounts`, `Breaker`), what follows a failure
(`RetryPolicy`). Here is only their sequence, that of `fleet.gateway.exchange`.
"""

from collections.abc import Callable

from shoal.policy.admission import Admission, Refusal
from shoal.policy.batching import ChainHasher, CountedRequest, RequestRefused
from shoal.policy.batching.request import SequenceState
from shoal.policy.continuation import is_at_limit
from shoal.policy.dispatch import LOOK_SECONDS, Dispatch, Placed, Queued
from shoal.policy.estimates import TokenEstimator
from shoal.policy.outcomes import MEANINGS, Outcome
from shoal.policy.replicas import ReplicaAccounts
from shoal.policy.retry import Failure, RetryPolicy
from shoal.policy.routing import NoReplica, RouteRequest, build_router
from shoal.sim.asks import Ask
from shoal.sim.deadlines import Deadlines
from shoal.sim.events import NANOSECONDS, Call, Events, nanoseconds
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.legs import Leg, SimulatedAccount
from shoal.sim.split import SimulatedSplitter

_LOOK = nanoseconds(LOOK_SECONDS)


class SimulatedGateway:
    """Takes requests, and tells each one's fate by its `done`."""

    def __init__(self, fleet: SimulatedFleet, events: Events, hasher: ChainHasher) -> None:
        self.fleet = fleet
        self.accounts: ReplicaAccounts[SimulatedAccount] = ReplicaAccounts(fleet.breaker)
        self.router = build_router(fleet.router)
        self.admission = Admission(fleet.admission, fleet.down)
        self.retries = RetryPolicy(fleet.retry)
        self.dispatch = Dispatch(self.accounts, self.router, self.admission)
        self.estimator = TokenEstimator()
        self.legs: dict[int, Leg] = {}
        """Live ones by number, which is the request's id at the replica."""
        self.live = 0
        """Requests whose fate is open."""
        self._events = events
        self._hasher = hasher
        self._number = 0
        self._waiting: dict[RouteRequest, tuple[Ask, int, Queued]] = {}
        self._looks = False
        self._wants_blocks = "blocks" in self.router.needs
        self._deadlines = Deadlines(events, self.cancel)
        self.splitter = SimulatedSplitter(self, events, hasher)
        self.watch: Callable[[SimulatedAccount], None] = lambda account: None
        """Told of every leg's replica, for whoever looks after its health."""

    # Requests

    def send(self, ask: Ask, time: int) -> None:
        """Take a request in."""
        ask.sent = time
        self.live += 1
        self._deadlines.add(ask)
        now = time / NANOSECONDS
        self.retries.on_request(now)
        route = self._route(ask)
        if not self.accounts.serves(ask.model):
            self._end(ask, Outcome.CLIENT_ERROR, 404, f"model {ask.model!r} is not served", time)
            return
        refusal = self.dispatch.refusal(route, now)
        if refusal is not None:
            self._end(ask, Outcome.BACKPRESSURE, 429, refusal.reason, time)
            return
        self._acquire(ask, route, 0, time)

    def _route(self, ask: Ask) -> RouteRequest:
        route = RouteRequest(
            id=str(ask.index),
            model=ask.model,
            prompt_tokens=ask.prompt,
            max_tokens=self.estimator.output_tokens(ask.model, ask.output),
            session=ask.name,
            client=ask.client,
            priority=ask.priority,
        )
        if self._wants_blocks:
            route.blocks = self._hasher.chain(ask.pieces, ask.prompt)
            route.block_tokens = float(self._hasher.block_size)
        return route

    def _acquire(self, ask: Ask, route: RouteRequest, given: int, time: int) -> None:
        answer = self.dispatch.place(route, streams=True, now=time / NANOSECONDS)
        if isinstance(answer, Placed):
            self._begin(ask, route, answer, given, time)
        elif isinstance(answer, Queued):
            self._waiting[route] = ask, given, answer
            self._events.at(time + nanoseconds(answer.seconds), lambda t: self._give_up(route, t))
            self.pump(time)
            self._look_again(time)
        elif isinstance(answer, Refusal):
            self._end(ask, Outcome.BACKPRESSURE, 429, answer.reason, time)
        else:
            self._unavailable(ask, answer, time)

    def pump(self, time: int) -> None:
        """Serve whoever waits and can be served."""
        if not self._waiting:
            return
        for route, placed in self.dispatch.pump(time / NANOSECONDS):
            ask, given, _ = self._waiting.pop(route)
            self._begin(ask, route, placed, given, time)

    def _look_again(self, time: int) -> None:
        if self._waiting and not self._looks:
            self._looks = True
            self._events.at(time + _LOOK, self._look)

    def _look(self, time: int) -> None:
        self._looks = False
        self.pump(time)
        self._look_again(time)

    def _give_up(self, route: RouteRequest, time: int) -> None:
        waiting = self._waiting.pop(route, None)
        if waiting is not None:
            self.dispatch.leave(route)
            self._unavailable(waiting[0], waiting[2].late, time)

    # Legs

    def _begin(self, ask: Ask, route: RouteRequest, placed: Placed, given: int, time: int) -> None:
        account = self.accounts.get(placed.decision.replica)
        leg = self.enter(Leg(0, ask, route, placed, account, given, time))
        ask.legs += 1
        ask.tries += 1
        ask.replica = account.name
        if ask.placed is None:
            ask.placed, ask.predicted_hit = time, placed.decision.predicted_hit
        if self.splitter.splits(leg):
            self.splitter.prefill(leg, time)
        else:
            self.open(leg, time)

    def enter(self, leg: Leg) -> Leg:
        """Count a leg as live, and give it its number."""
        self._number += 1
        leg.number = self._number
        self.legs[leg.number] = leg
        self.watch(leg.account)
        return leg

    def open(self, leg: Leg, time: int) -> None:
        """Send a leg to its replica."""
        self._after(leg.account.front, lambda t: self._submit(leg, t), time)

    def _after(self, delay: int, call: Call, time: int) -> None:
        if delay:
            self._events.at(time + delay, call)
        else:
            call(time)

    def _submit(self, leg: Leg, time: int) -> None:
        if leg.over:
            return
        account, ask = leg.account, leg.ask
        if account.cut_off:
            late = time + nanoseconds(self.fleet.connect)
            self._events.at(late, lambda t: self.end_leg(leg, Outcome.TRANSPORT_FAULT, "unreachable", t))
            return
        if not account.replica.up:
            self.end_leg(leg, Outcome.TRANSPORT_FAULT, "connection refused", time)
            return
        request = CountedRequest(
            id=leg.number,
            pieces=ask.pieces,
            prompt_length=ask.prompt,
            max_tokens=ask.output if leg.of is None else 1,
            answer=ask.answer if leg.of is None else None,
            hashes=leg.hashes,
            priority=ask.priority,
            output_length=leg.given,
            hand_off=leg.of is not None,
        )
        if leg.split is None:
            self._add(leg, request, time)
        else:
            self.splitter.take_over(leg, lambda t: self._add(leg, request, t), time)

    def _add(self, leg: Leg, request: CountedRequest, time: int) -> None:
        try:
            leg.account.replica.submit(request, time)
        except RequestRefused as refused:
            self.end_leg(leg, Outcome.CLIENT_ERROR, str(refused), time)

    def on_first_token(self, sequence: SequenceState, time: int) -> None:
        """See `replica.Listener`."""
        leg = self.legs.get(sequence.id)
        if leg is not None:
            self._after(leg.account.back, lambda t: self._first(leg, sequence, t), time)

    def _first(self, leg: Leg, sequence: SequenceState, time: int) -> None:
        if leg.over or leg.account.cut_off or leg.of is not None:
            return
        ask, cached = leg.ask, self.splitter.took(leg)
        leg.placed.lease.progress(time / NANOSECONDS)
        if ask.first is None:
            ask.first = time
            ask.cached = sequence.cached_tokens if cached is None else cached
            assert sequence.first_scheduled is not None
            ask.begun = nanoseconds(sequence.first_scheduled)
        if leg.given:
            # It goes on: from here on it counts as begun anew.
            ask.tries = 1

    def on_finished(self, sequence: SequenceState, time: int) -> None:
        """See `replica.Listener`."""
        leg = self.legs.get(sequence.id)
        if leg is None:
            self.splitter.released(sequence.id)
            return
        if leg.of is not None:
            self.splitter.handovers.offered(leg, sequence, time)
        leg.ask.preemptions += sequence.preemptions
        if leg.placed.lease.first_at is not None and not leg.account.cut_off:
            leg.ask.tokens = sequence.length - sequence.prompt_length
        self._after(leg.account.back, lambda t: self._finished(leg, sequence, t), time)

    def _finished(self, leg: Leg, sequence: SequenceState, time: int) -> None:
        if leg.over:
            return
        if leg.account.cut_off:
            # What it sent waits in the network; nobody hears that it has ended.
            leg.account.held.append((leg, sequence))
            return
        if leg.of is not None:
            self._close(leg, Outcome.OK, time)
            self.splitter.prefilled(leg, time)
            return
        ask, account, lease = leg.ask, leg.account, leg.placed.lease
        if lease.first_at is None:
            self._first(leg, sequence, time)
        ask.tokens = sequence.length - sequence.prompt_length
        ask.last = time
        lease.tokens = ask.tokens - leg.given
        account.last_progress = time / NANOSECONDS
        self._close(leg, Outcome.OK, time)
        if not ask.continued and leg.split is None:
            account.on_hit(leg.placed.decision.predicted_hit, sequence.cached_tokens, ask.prompt)
        self.estimator.observe(ask.model, 4 * ask.prompt, ask.prompt, ask.tokens)
        self._end(ask, Outcome.OK, 200, "", time)

    def _close(self, leg: Leg, outcome: Outcome, time: int) -> None:
        leg.over = True
        del self.legs[leg.number]
        if outcome is not Outcome.OK and leg.account.replica.up:
            leg.account.replica.abort(leg.number, time)
        self.splitter.close(leg, time)
        leg.placed.lease.release(outcome, time / NANOSECONDS)

    def end_leg(self, leg: Leg, outcome: Outcome, why: str, time: int) -> None:
        """A leg fails; what follows is up to the retry policy."""
        if leg.over or self.splitter.ends_later(leg, outcome, why):
            return
        account, ask, lease = leg.account, leg.ask, leg.placed.lease
        now = time / NANOSECONDS
        got = self._sent(leg, time)
        if got > leg.given:
            lease.tokens = got - leg.given
            ask.tokens = got
        self._close(leg, outcome, time)
        if leg.of is not None:
            self.splitter.failed(leg, outcome, why, time)
            return
        if self.fleet.continues and ask.first is not None and is_at_limit(ask.output, got, ask.tokens):
            # The client has all of it but the word that this was all.
            ask.last = time
            self._end(ask, Outcome.OK, 200, "", time)
            return
        failure = Failure(leg.route, account.state, outcome, ask.tries)
        states = self.accounts.states(now)
        if ask.first is None:
            further = self.retries.retry(failure, states, now)
        elif self.fleet.continues:
            further = self.retries.resume(failure, states, now, unable=frozenset(), sent_tokens=ask.tokens)
        else:
            further = None
        if further is None:
            self._end(ask, outcome, MEANINGS[outcome].status if ask.first is None else 200, why, time)
            return
        ask.faults.append(f"{account.name}: {why}")
        ask.continued += ask.first is not None
        self._acquire(ask, further, ask.tokens, time)

    def _sent(self, leg: Leg, time: int) -> int:
        """Output tokens of the answer that the client has by now."""
        if leg.account.cut_off or leg.placed.lease.first_at is None or not leg.account.replica.up:
            return leg.ask.tokens
        return max(leg.ask.tokens, leg.account.replica.generated(leg.number, time))

    # Fates

    def _unavailable(self, ask: Ask, why: NoReplica, time: int) -> None:
        status = 404 if why.kind == "model" else 503
        outcome = Outcome.CLIENT_ERROR if why.kind == "model" else Outcome.BACKPRESSURE
        self._end(ask, outcome, status, why.reason, time)

    def _end(self, ask: Ask, outcome: Outcome, status: int | None, error: str, time: int) -> None:
        assert ask.outcome is None, f"request {ask.index} has two fates"
        ask.outcome, ask.status, ask.error, ask.ended = outcome, status, error, time
        # Nobody looks at its contents again, and a run may have millions.
        ask.pieces = ()
        self.live -= 1
        self.pump(time)
        ask.done(ask, time)

    # Clients leave

    def cancel(self, ask: Ask, time: int) -> None:
        """The client of a request whose fate is open is gone: its deadline has passed."""
        if ask.outcome is not None:
            return
        for route, (waiting, _, _) in list(self._waiting.items()):
            if waiting is ask:
                del self._waiting[route]
                self.dispatch.leave(route)
        for leg in [leg for leg in self.legs.values() if leg.ask is ask]:
            ask.tokens = self._sent(leg, time)
            self._close(leg, Outcome.CANCELLED, time)
        self._end(ask, Outcome.DEADLINE, None if ask.first is None else 200, "no whole answer in time", time)

    # What others ask

    def legs_on(self, account: SimulatedAccount) -> list[Leg]:
        """Return the live legs on a replica, oldest first."""
        return [leg for leg in self.legs.values() if leg.account is account]

    def note_sent(self, account: SimulatedAccount, time: int) -> None:
        """Remember what clients have of the legs on a replica that is about to lose everything."""
        for leg in self.legs_on(account):
            leg.ask.tokens = self._sent(leg, time)

    def reconnect(self, account: SimulatedAccount, time: int) -> None:
        """The replica can be reached again: what waited in the network arrives."""
        account.cut_off = False
        held, account.held = account.held, []
        for leg, sequence in held:
            self._finished(leg, sequence, time)
        for leg in self.legs_on(account):
            live = account.replica.sequence(leg.number)
            if leg.placed.lease.first_at is None and live is not None and live.first_token is not None:
                self._first(leg, live, time)
