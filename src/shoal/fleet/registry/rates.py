"""Learning how fast a replica is, from the legs it carried: no benchmark, no configuration."""

from dataclasses import dataclass

_WEIGHT = 0.1


@dataclass(slots=True)
class Rates:
    """Running estimates of one replica.

    Prefill: tokens over seconds, both as decaying sums, so that long prompts count by their length. Decode: the
    slope of seconds a token over sequences running, by decaying moments (least squares on the recent past).
    """

    prefill_rate: float = 4000.0
    """Prompt tokens a second. The start is a guess that the first answers replace."""
    _tokens: float = 0.0
    _seconds: float = 0.0
    tpot: float = 0.0
    """Seconds an output token, mean of recent legs; 0 before the first."""
    ttft: float = 0.0
    """Seconds to the first token, mean of recent legs; 0 before the first."""
    _n: float = 0.0
    _nn: float = 0.0
    _nt: float = 0.0
    _seen: int = 0

    def on_first_token(self, computed: float, seconds: float) -> None:
        """`computed` prompt tokens (those ahead and its own) took `seconds`."""
        self.ttft = seconds if self.ttft == 0 else self.ttft + _WEIGHT * (seconds - self.ttft)
        if computed < 1 or seconds <= 0:
            return
        self._tokens = (1 - _WEIGHT) * self._tokens + computed
        self._seconds = (1 - _WEIGHT) * self._seconds + seconds
        self.prefill_rate = self._tokens / self._seconds

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

    @property
    def decode_seconds(self) -> float:
        """What one more running sequence adds to a step; between 0 and all of a step's time a sequence."""
        variance = self._nn - self._n * self._n
        if self._seen < 8 or variance < 0.25:
            return 0.0
        slope = (self._nt - self._n * self.tpot) / variance
        return min(max(slope, 0.0), self.tpot / max(1.0, self._n))
