"""One replica's account: its load, its learned rates, its breaker; the only writer of its `ReplicaState`.

pending_tokens = prompt tokens of own leases that wait to be computed + those of others
"""

import heapq

import msgspec

from shoal.policy.breaker import Breaker, BreakerConfig
from shoal.policy.leases import Lease
from shoal.policy.outcomes import MEANINGS, Outcome
from shoal.policy.rates import Peers, Rates
from shoal.policy.routing.contracts import ReplicaState
from shoal.policy.routing.trust import Trust


class ReplicaStats(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's gauges at one moment; None where it doesn't say."""

    running: int | None = None
    """Requests being computed."""
    waiting: int | None = None
    """Requests that wait inside the engine."""
    kv_usage: float | None = None
    """Share of KV memory in use, 0 to 1."""
    kv_capacity_tokens: int | None = None
    generated_tokens: int | None = None
    """Counter since its start. A lower value than before means that it restarted."""
    prompt_tokens: int | None = None
    steps: int | None = None
    """Forward passes since its start; so are the next two."""
    step_sequences: int | None = None
    """Sequences in all of them."""
    step_tokens: int | None = None
    rank_seconds: float | None = None
    """Time in forward passes since its start, summed over its ranks; None for one rank."""
    rank_waiting_seconds: float | None = None
    """Of it, time that ranks spent waiting for each other."""


class ReplicaAccount:
    """What leases, outcomes and gauges say of one replica. Told the time; owned by one thread."""

    def __init__(self, state: ReplicaState, breaker: BreakerConfig, peers: Peers, now: float) -> None:
        """`peers`: rates of the replica's pool, shared with its other replicas."""
        self.name = state.name
        self.state = state
        self.breaker = Breaker(breaker)
        self.trust = Trust()
        self.rates = Rates(peers)
        self.stats = ReplicaStats()
        self.batch_sequences: float | None = None
        """Sequences per step, mean between the last two readings of its gauges; None: unknown."""
        self.rank_waiting: float | None = None
        """Share of its ranks' step time spent waiting for each other, between the last two looks, 0 to 1."""
        self.last_progress = now
        """Time of the last output from it, of whatever request."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.own_pending = 0.0
        """Prompt tokens of own leases that wait to be computed."""
        self._peer_load = (0, 0.0)
        """Requests and pending prompt tokens of other gateways, as they say."""
        self._foreign = 0
        """Requests of others, by the engine's gauges."""
        self._own_kv = 0.0
        self._mean_prompt = 0.0
        self._silent: list[tuple[float, int, Lease]] = []
        """Legs without a stream, by when their prompt should be computed."""
        self._order = 0
        self._is_stale = False
        """Rates have learned what the state doesn't show yet."""
        self._pool_version = 0
        """Of its pool's rates, as the state shows them."""
        self.unsettled: dict[str, ReplicaAccount] = {}
        """Where it enters itself when `settle` has something to do; that of all accounts of a gateway."""

    # Leases.

    def on_taken(self, lease: Lease) -> None:
        state = self.state
        lease.era = self.breaker.admit(lease.taken_at)
        lease.ahead = state.pending_tokens
        if state.inflight == 0:
            self.last_progress = lease.taken_at
        state.inflight += 1
        self.own_pending += lease.uncached
        self._own_kv += lease.prompt_tokens + lease.output_tokens
        self._mean_prompt += 0.1 * (lease.prompt_tokens - self._mean_prompt)
        if not lease.streams:
            self._order += 1
            due = lease.taken_at + (lease.ahead + lease.uncached) / self.rates.prefill_rate
            heapq.heappush(self._silent, (due, self._order, lease))
        self._weigh(lease.taken_at)

    def settle(self, now: float) -> None:
        """Update all that a decision reads: legs without a stream, rates, the breaker.

        A prompt without a stream counts as computed once it should be.
        """
        while self._silent and (self._silent[0][0] <= now or self._silent[0][2].outcome is not None):
            lease = heapq.heappop(self._silent)[2]
            if lease.outcome is None and not lease.decoding:
                self._start_decoding(lease)
                self.refresh(now)
        if self._is_stale or self._pool_version != self.rates.peers.version:
            self._is_stale, self._pool_version = False, self.rates.peers.version
            self.rates.age(now)
            self.rates.write_to(self.state)
        self.state.breaker_closed = self.breaker.allows(now)

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing of its state."""
        return not self._silent and self.breaker.closed

    def _start_decoding(self, lease: Lease) -> None:
        lease.decoding = True
        self.own_pending = max(0.0, self.own_pending - lease.uncached)
        self.state.decoding += 1

    def on_first_token(self, lease: Lease) -> None:
        assert lease.first_at is not None
        if not lease.decoding:
            self._start_decoding(lease)
        self.rates.on_first_token(lease.ahead + lease.uncached, lease.first_at - lease.taken_at)
        self.refresh(lease.first_at)

    def on_released(self, lease: Lease) -> None:
        assert lease.outcome is not None
        state = self.state
        running = state.decoding
        state.inflight -= 1
        self._own_kv = max(0.0, self._own_kv - lease.prompt_tokens - lease.output_tokens)
        if lease.decoding:
            state.decoding -= 1
        else:
            self.own_pending = max(0.0, self.own_pending - lease.uncached)
        if lease.first_at is None and lease.counted:
            spent = lease.last_at - lease.taken_at
            self.rates.on_whole(lease.ahead + lease.uncached, lease.counted, spent, running)
        elif lease.first_at is not None:
            self.rates.on_decoded(lease.tokens - 1, lease.last_at - lease.first_at, running)
        if state.inflight == 0:
            # Sums of floats drift; with nobody here they are known.
            self.own_pending = self._own_kv = 0.0
        self.outcomes[lease.outcome] += 1
        if MEANINGS[lease.outcome].breaker == "success":
            self.last_progress = lease.last_at
        self.breaker.record(lease.outcome, lease.last_at, lease.era)
        self.refresh(lease.last_at)

    # What others report.

    def on_stats(self, stats: ReplicaStats, now: float, own: int = 0) -> bool:
        """Take in its gauges. True if they show that it is another process than before.

        `own`: legs we had there when they were asked for. Some may have ended before the answer came, so that the
        larger of then and now is what the gauges hold of us; the rest is somebody else's.
        """
        self._measure_batch(self.stats, stats)
        self._measure_ranks(self.stats, stats)
        before, self.stats = self.stats.generated_tokens, stats
        counted = (stats.running or 0) + (stats.waiting or 0)
        self._foreign = max(0, counted - max(own, self.state.inflight))
        if stats.generated_tokens is not None and before is not None and stats.generated_tokens > before:
            self.last_progress = now
        self.refresh(now)
        return stats.generated_tokens is not None and before is not None and stats.generated_tokens < before

    def _measure_batch(self, before: ReplicaStats, after: ReplicaStats) -> None:
        if after.steps is None or after.step_sequences is None or before.step_sequences is None:
            return
        steps = after.steps - (before.steps or 0)
        sequences = after.step_sequences - before.step_sequences
        self.batch_sequences = sequences / steps if steps > 0 and sequences >= 0 else None

    def _measure_ranks(self, before: ReplicaStats, after: ReplicaStats) -> None:
        if after.rank_seconds is None or after.rank_waiting_seconds is None:
            self.rank_waiting = None
            return
        seconds = after.rank_seconds - (before.rank_seconds or 0.0)
        waiting = after.rank_waiting_seconds - (before.rank_waiting_seconds or 0.0)
        self.rank_waiting = min(1.0, waiting / seconds) if seconds > 0 and waiting >= 0 else None

    def on_peer_gateways(self, inflight: int, pending: float, now: float) -> None:
        """Take in what other gateways have in flight here: fresher than the engine's gauges."""
        if (inflight, pending) != self._peer_load:
            self._peer_load = (inflight, pending)
            self.refresh(now)

    def on_hit(self, predicted: int, actual: int, prompt_tokens: int) -> bool:
        """Compare predicted cached tokens with the engine's own count of them. True if trust was just lost.

        `prompt_tokens` are the engine's: an estimate of the prompt that was too long is no broken promise.
        """
        lost = self.trust.observe(min(predicted, prompt_tokens), actual)
        self.state.trust = self.trust.value
        return lost

    def refresh(self, now: float) -> None:
        """Update the state from leases and gauges; from rates when it is read (`settle`)."""
        self._weigh(now)
        self._is_stale = True

    def _weigh(self, now: float) -> None:
        """Update what changes with every lease; rates change only where a leg was observed."""
        self.unsettled[self.name] = self
        state, stats = self.state, self.stats
        waiting = stats.waiting or 0
        inflight, pending = self._peer_load
        state.foreign = max(inflight, self._foreign)
        by_gauge = min(waiting, state.foreign) * self._mean_prompt
        state.pending_tokens = self.own_pending + max(pending, by_gauge)
        if stats.kv_capacity_tokens:
            state.kv_capacity_tokens = float(stats.kv_capacity_tokens)
            state.kv_used_tokens = max(self._own_kv, (stats.kv_usage or 0.0) * stats.kv_capacity_tokens)
        state.breaker_closed = self.breaker.allows(now)

    @property
    def drift(self) -> int:
        """Requests that the engine counts beyond our leases (negative: it counts fewer); 0 if it doesn't say."""
        if self.stats.running is None:
            return 0
        return self.stats.running + (self.stats.waiting or 0) - self.state.inflight
