"""Learning how fast a replica is, from the legs it carried: no benchmark, no configuration."""

import math
from dataclasses import dataclass, field

_WEIGHT = 0.1
_TPOT = 0.02
"""Seconds an output token, before any was seen."""
_MARGINAL = 0.0005
"""Seconds that one more sequence adds to a step, before that was seen: between a large GPU's and a laptop's."""
_PRIOR_TOKENS = 2000.0
"""Prompt tokens of evidence that its peers' rate counts for."""
_START_RATE = 4000.0
"""Prompt tokens a second before anything was seen: between a laptop's hundreds and a large GPU's ten thousands."""
_FORGET_SECONDS = 60.0
"""Evidence loses two thirds of its weight in this time."""


@dataclass(slots=True)
class Peers:
    """What is known of all replicas of a pool together; where each one's estimate starts, and returns to."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = 0.99 * self.tokens + tokens
        self.seconds = 0.99 * self.seconds + seconds

    @property
    def rate(self) -> float:
        return (self.tokens + _PRIOR_TOKENS) / (self.seconds + _PRIOR_TOKENS / _START_RATE)


@dataclass(slots=True)
class Rates:
    """Running estimates of one replica.

    Prefill: tokens over seconds, as decaying sums, so that long prompts count by their length, drawn to the peers'
    rate where there is little evidence. Otherwise a replica whose first answer was slow by chance would never be
    asked again, and never be known better. Decode: the slope of seconds a token over sequences running, by decaying
    moments (least squares on the recent past).
    """

    peers: Peers = field(default_factory=Peers)
    tpot: float = 0.0
    """Seconds an output token, mean of recent legs; 0 before the first."""
    ttft: float = 0.0
    """Seconds to the first token, mean of recent legs; 0 before the first."""
    _tokens: float = 0.0
    _seconds: float = 0.0
    _at: float = 0.0
    _n: float = 0.0
    _nn: float = 0.0
    _nt: float = 0.0
    _seen: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return (self._tokens + _PRIOR_TOKENS) / (self._seconds + _PRIOR_TOKENS / self.peers.rate)

    def age(self, now: float) -> None:
        """Forget as time goes by: what was slow a while ago deserves another look."""
        if now - self._at > 1.0:
            factor = math.exp((self._at - now) / _FORGET_SECONDS)
            self._tokens *= factor
            self._seconds *= factor
            self._at = now

    def on_first_token(self, computed: float, seconds: float) -> None:
        """`computed` prompt tokens (those ahead and its own) took `seconds`."""
        self.ttft = seconds if self.ttft == 0 else self.ttft + _WEIGHT * (seconds - self.ttft)
        if computed < 1 or seconds <= 0:
            return
        self.peers.add(computed, seconds)
        self._tokens = (1 - _WEIGHT) * self._tokens + computed
        self._seconds = (1 - _WEIGHT) * self._seconds + seconds

    def on_decoded(self, tokens: int, seconds: float, running: int) -> None:
        """A leg's `tokens` after its first took `seconds`, with `running` sequences about it."""
        if tokens < 1 or seconds <= 0:
            return
        each, weight = seconds / tokens, 1.0 if self._seen == 0 else _WEIGHT
        self._seen += 1
        self.tpot += weight * (each - self.tpot)
        self._n += weight * (running - self._n)
        self._nn += weight * (running * running - self._nn)
        self._nt += weight * (running * each - self._nt)

    def on_whole(self, computed: float, tokens: int, seconds: float, running: int) -> None:
        """A leg that wasn't streamed: `computed` prompt tokens and `tokens` of output took `seconds` together.

        The time is divided as the rates so far would; what it tells is by how much both are off.
        """
        if tokens < 1 or seconds <= 0:
            return
        prompt, output = computed / self.prefill_rate, tokens * (self.tpot or _TPOT)
        share = prompt / (prompt + output)
        self.on_first_token(computed, seconds * share)
        self.on_decoded(tokens, seconds * (1 - share), running)

    @property
    def decode_seconds(self) -> float:
        """What one more running sequence adds to a step; between 0 and all of a step's time a sequence."""
        variance = self._nn - self._n * self._n
        if self._seen < 8 or variance < 0.25:
            return _MARGINAL
        slope = (self._nt - self._n * self.tpot) / variance
        return min(max(slope, 0.0), self.tpot / max(1.0, self._n))
