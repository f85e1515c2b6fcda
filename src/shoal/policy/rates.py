"""Learning how fast a replica is, from the legs it carried: no benchmark, no configuration.

Replicas of a pool are alike until they show otherwise. So whatever few legs can't tell (a rate, a slope) is learned
from all of the pool, and of each replica only how many times slower than the pool it is, as far as chance doesn't
explain that. A router that believed every replica's own noisy estimates would send a burst to the luckiest.
"""

import math
from dataclasses import dataclass, field

from shoal.policy.routing.contracts import ReplicaState

_WEIGHT = 0.1
"""Of a leg in a replica's running means: about the last ten count."""
_POOL_DECAY = 0.99
_TPOT = 0.02
"""Seconds per output token before any was seen."""
_MARGINAL = 0.0005
"""Seconds that one more sequence adds to a step, before that was seen: between a large GPU's and a laptop's."""
_MIN_MARGINAL_SHARE = 1 / 64
"""Of a step: what one more sequence adds at least. Memory-bound steps hide it, slots and KV don't."""
_PRIOR_TOKENS = 2000.0
"""Prompt tokens of evidence that the start rate counts for."""
_START_RATE = 4000.0
"""Prompt tokens per second before anything was seen: from a laptop's hundreds to a large GPU's ten thousands."""
_SMALL = 64
"""Prompt tokens whose computing takes no longer than a step takes anyway."""
_FORGET_SECONDS = 60.0
"""Evidence loses two thirds of its weight in this time."""
_FORGOTTEN = 1e-9
"""Legs: less evidence than this is none."""
_PUBLISHED_CHANGE = 0.02
"""Relative change of a pool's rate that is written to the states of all its replicas. Written to some only, it
would look like a difference between them."""


@dataclass(slots=True)
class _Durations:
    """Seconds that legs took and seconds that were expected, both decaying."""

    decay: float
    observed: float = 0.0
    expected: float = 0.0
    legs: float = 0.0

    def add(self, observed: float, expected: float) -> None:
        self.observed = self.decay * self.observed + observed
        self.expected = self.decay * self.expected + expected
        self.legs = self.decay * self.legs + 1

    def fade(self, factor: float) -> None:
        """Forget by `factor`."""
        self.observed *= factor
        self.expected *= factor
        self.legs *= factor
        if self.legs < _FORGOTTEN:
            # Of what is left, floats would lose the seconds before the legs: a replica that takes no time at all.
            self.observed = self.expected = self.legs = 0.0

    @property
    def ratio(self) -> float:
        return self.observed / self.expected if self.expected > 0 else 1.0

    def slowness(self, pool: "_Durations") -> float:
        """How many times slower than its pool, as far as chance doesn't explain it.

        The mean of n exponential times is off by 1/√n: within that, it is 1. Relative to how far off expectations
        are for all, so that a poor model of the pool blames nobody.
        """
        if self.legs <= 0:
            return 1.0
        relative, chance = self.ratio / pool.ratio, 1 + 1 / math.sqrt(self.legs)
        return relative / chance if relative > chance else min(1.0, relative * chance)


@dataclass(slots=True)
class Peers:
    """Rates of all replicas of a pool together."""

    overhead: float = 0.0
    """Seconds to the first token that don't depend on the prompt; 0 before a short prompt was seen."""
    tpot: float = 0.0
    """Seconds per output token, recent mean; 0 before the first."""
    prefill: _Durations = field(default_factory=lambda: _Durations(_POOL_DECAY))
    decode: _Durations = field(default_factory=lambda: _Durations(_POOL_DECAY))
    _tokens: float = 0.0
    _seconds: float = 0.0
    _n: float = 0.0
    _nn: float = 0.0
    _nt: float = 0.0
    _seen: int = 0
    version: int = 0
    """Counts changes that replicas' states have to show."""
    _published: tuple[float, float, float, float] = (_START_RATE, 0.0, 0.0, _MARGINAL)

    def _publish(self) -> None:
        rate, overhead, tpot, marginal = self.rate, self.overhead, self.tpot, self.marginal
        was_rate, was_overhead, was_tpot, was_marginal = self._published
        if (
            abs(rate - was_rate) > _PUBLISHED_CHANGE * was_rate
            or abs(overhead - was_overhead) > _PUBLISHED_CHANGE * was_overhead
            or abs(tpot - was_tpot) > _PUBLISHED_CHANGE * was_tpot
            or abs(marginal - was_marginal) > _PUBLISHED_CHANGE * was_marginal
        ):
            self._published = rate, overhead, tpot, marginal
            self.version += 1

    def on_first_token(self, computed: float, seconds: float) -> None:
        if computed <= _SMALL:
            # Down quickly, up slowly: hiccups and queues aren't what every prompt pays.
            weight = 1.0 if self.overhead == 0 else 0.3 if seconds < self.overhead else 0.03
            self.overhead += (seconds - self.overhead) * weight
            self._publish()
            return
        self._tokens = _POOL_DECAY * self._tokens + computed
        # Half at least: an overhead that was learned under load must not make prompts free.
        self._seconds = _POOL_DECAY * self._seconds + max(seconds - self.overhead, seconds / 2)
        self._publish()

    def on_decoded(self, each: float, running: int) -> None:
        weight = 1.0 if self._seen == 0 else _WEIGHT
        self._seen += 1
        self.tpot += weight * (each - self.tpot)
        self._n += weight * (running - self._n)
        self._nn += weight * (running * running - self._nn)
        self._nt += weight * (running * each - self._nt)
        self._publish()

    @property
    def rate(self) -> float:
        """Prompt tokens per second."""
        return (self._tokens + _PRIOR_TOKENS) / (self._seconds + _PRIOR_TOKENS / _START_RATE)

    @property
    def marginal(self) -> float:
        """Seconds that one more running sequence adds to a step: least squares on the recent past, never 0."""
        variance = self._nn - self._n * self._n
        if self._seen < 8 or variance < 0.25:
            return _MARGINAL
        slope = (self._nt - self._n * self.tpot) / variance
        return min(max(slope, self.tpot * _MIN_MARGINAL_SHARE), self.tpot / max(1.0, self._n))

    def prefill_seconds(self, computed: float) -> float:
        return self.overhead + computed / self.rate

    def step_seconds(self, running: int) -> float:
        if self._seen == 0:
            return _TPOT
        return max(self.tpot / 2, self.tpot + self.marginal * (running - self._n))


@dataclass(slots=True)
class Rates:
    """Running estimates of one replica."""

    peers: Peers = field(default_factory=Peers)
    tpot: float = 0.0
    """Seconds per output token, mean of recent legs; 0 before the first."""
    ttft: float = 0.0
    """Seconds to the first token, mean of recent legs; 0 before the first."""
    _prefill: _Durations = field(default_factory=lambda: _Durations(1 - _WEIGHT))
    _decode: _Durations = field(default_factory=lambda: _Durations(1 - _WEIGHT))
    _at: float = 0.0

    @property
    def prefill_slowness(self) -> float:
        """Times the pool's usual time to a first token; 1: no different."""
        return self._prefill.slowness(self.peers.prefill)

    @property
    def decode_slowness(self) -> float:
        """Times the pool's usual time per output token; 1: no different."""
        return self._decode.slowness(self.peers.decode)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.peers.rate / self.prefill_slowness

    @property
    def overhead(self) -> float:
        """Seconds to the first token that don't depend on the prompt."""
        return self.peers.overhead * self.prefill_slowness

    @property
    def decode_seconds(self) -> float:
        """What one more running sequence adds to a step."""
        return self.peers.marginal * self.decode_slowness

    @property
    def decode_excess(self) -> float:
        """Seconds that an output token takes here beyond what it takes elsewhere; 0 or more."""
        return self.peers.tpot * max(0.0, self.decode_slowness - 1.0)

    def tpot_with(self, running: int) -> float:
        """Seconds per output token with `running` sequences."""
        return self.peers.step_seconds(running) * self.decode_slowness

    def write_to(self, state: ReplicaState) -> None:
        """Write all estimates into the state that the router reads, computing each slowness once."""
        peers, prefill, decode = self.peers, self.prefill_slowness, self.decode_slowness
        state.prefill_rate = peers.rate / prefill
        state.overhead_seconds = peers.overhead * prefill
        state.decode_seconds = peers.marginal * decode
        state.decode_excess = peers.tpot * max(0.0, decode - 1.0)

    def age(self, now: float) -> None:
        """Forget as time goes by."""
        if now - self._at > 1.0:
            factor = math.exp((self._at - now) / _FORGET_SECONDS)
            self._prefill.fade(factor)
            self._decode.fade(factor)
            self._at = now

    def on_first_token(self, computed: float, seconds: float) -> None:
        """`computed` prompt tokens (those ahead and its own) took `seconds`."""
        self.ttft = seconds if self.ttft == 0 else self.ttft + _WEIGHT * (seconds - self.ttft)
        if computed < 1 or seconds <= 0:
            return
        self.peers.on_first_token(computed, seconds)
        expected = self.peers.prefill_seconds(computed)
        for durations in (self._prefill, self.peers.prefill):
            durations.add(seconds, expected)

    def on_decoded(self, tokens: int, seconds: float, running: int) -> None:
        """A leg's `tokens` after its first took `seconds`, with `running` sequences about it."""
        if tokens < 1 or seconds <= 0:
            return
        each = seconds / tokens
        self.tpot += (_WEIGHT if self.tpot else 1.0) * (each - self.tpot)
        self.peers.on_decoded(each / self.decode_slowness, running)
        expected = self.peers.step_seconds(running)
        for durations in (self._decode, self.peers.decode):
            durations.add(each, expected)

    def on_whole(self, computed: float, tokens: int, seconds: float, running: int) -> None:
        """A leg that wasn't streamed: `computed` prompt tokens and `tokens` of output took `seconds` together.

        The time is divided as the rates so far would; what it tells is by how much both are off.
        """
        if tokens < 1 or seconds <= 0:
            return
        prompt = self.overhead + computed / self.prefill_rate
        output = tokens * self.tpot_with(running)
        share = prompt / (prompt + output)
        self.on_first_token(computed, seconds * share)
        self.on_decoded(tokens, seconds * (1 - share), running)
