"""What users ask for: `Workload`, the traffic, and `Slo`, the latency that is promised."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from shoal.specs.errors import SpecError

MAX_TOKENS = 100_000_000
"""More tokens in one request than any published model accepts: a larger figure is a slip of the keyboard."""


def positive(field: str, value: float, limit: float = math.inf, zero: bool = False) -> float:
    """The value, if it is finite, above zero (or zero, if allowed) and at most `limit`; else `SpecError`."""
    # One comparison accepts what is right (and refuses NaN): searches call this a hundred thousand times.
    if type(value) is not bool and isinstance(value, _NUMBER) and 0 < value <= limit and value < math.inf:
        return value
    if zero and type(value) is not bool and isinstance(value, _NUMBER) and value == 0:
        return value
    floor = "zero or more" if zero else "a number greater than zero"
    raise SpecError(field, value, floor if math.isinf(limit) else f"{floor} and at most {limit:,.0f}")


_NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of inputs or outputs, in tokens: a log-normal of this mean and standard deviation, cut at `maximum`.

    A standard deviation of zero means that every request has exactly the mean.
    """

    mean: float
    std: float = 0.0
    maximum: float | None = None

    def __post_init__(self) -> None:
        positive("lengths.mean", self.mean, MAX_TOKENS)
        positive("lengths.std", self.std, MAX_TOKENS, zero=True)
        if self.maximum is not None and self.maximum < self.mean:
            raise SpecError("lengths.maximum", self.maximum, f"at least the mean, {self.mean:g} tokens")

    def quantile(self, share: float) -> float:
        """The length in tokens that this share (0 to 1) of requests does not exceed."""
        if not 0 < share < 1:
            raise SpecError("lengths.quantile", share, "a share between 0 and 1, both excluded")
        length = self.mean
        if self.std > 0:
            variance = math.log1p((self.std / self.mean) ** 2)
            length = math.exp(
                math.log(self.mean) - variance / 2 + NormalDist().inv_cdf(share) * math.sqrt(variance)
            )
        return length if self.maximum is None else min(length, self.maximum)

    @property
    def longest(self) -> float:
        """The longest length to provide for, in tokens: `maximum`, or else the 99th percentile."""
        return self.maximum if self.maximum is not None else self.quantile(0.99)


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic of one model. Either `users` (a closed loop) or `rate` (an open one), or both, is given."""

    input: Lengths
    """Tokens of a prompt, including what a prefix cache may already hold."""
    output: Lengths
    """Tokens generated for a request."""
    users: float | None = None
    """Requests in flight at the peak."""
    rate: float | None = None
    """Requests a second at the peak."""
    prefix_hit: float = 0.0
    """Share of input tokens whose KV is reused, 0 to 1."""
    peak_to_mean: float = 1.0
    """Peak traffic over mean traffic: capacity is bought for the peak, tokens are sold at the mean."""

    def __post_init__(self) -> None:
        if self.users is None and self.rate is None:
            raise SpecError("workload", None, "users (requests in flight), rate (requests a second), or both")
        if self.users is not None:
            positive("workload.users", self.users, 1e9)
        if self.rate is not None:
            positive("workload.rate", self.rate, 1e9)
        if not 0 <= self.prefix_hit < 1:
            raise SpecError("workload.prefix_hit", self.prefix_hit, "a share from 0 up to, not including, 1")
        if not 1 <= self.peak_to_mean <= 1000:
            raise SpecError("workload.peak_to_mean", self.peak_to_mean, "a ratio from 1 to 1000")

    @property
    def mean_context(self) -> float:
        """Mean tokens in the cache of a request being decoded: the whole input and half of the output."""
        return self.input.mean + self.output.mean / 2

    @property
    def longest_context(self) -> float:
        """Tokens in the cache of the longest request to provide for, at its end."""
        return self.input.longest + self.output.longest


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives. TTFT: first non-empty token − send. TPOT: (E2E − TTFT)/(n − 1), a request."""

    ttft: float | None = None
    """Seconds to the first token."""
    tpot: float | None = None
    """Seconds for each further token."""
    percentile: float = 50.0
    """The percentile of requests, 0 to 100, both excluded, that must meet every objective."""

    def __post_init__(self) -> None:
        if self.ttft is not None:
            positive("slo.ttft", self.ttft, 86_400)
        if self.tpot is not None:
            positive("slo.tpot", self.tpot, 3_600)
        if not 0 < self.percentile < 100:
            raise SpecError("slo.percentile", self.percentile, "a percentile between 0 and 100, both excluded")
