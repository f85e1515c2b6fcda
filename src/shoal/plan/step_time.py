"""How long one step takes: roofline terms with calibrated shares, for the planner.

A step reads the weights it touches, multiplies them with its tokens, reads and writes the cache, and talks to the
other ranks; each part is bounded by memory or arithmetic, plus fixed times a layer and a step. The same formulas
take floats and arrays of cases.
"""

from dataclasses import dataclass

from shoal.plan.engine_constants import Constants
from shoal.plan.numeric import ARRAY, SCALAR, Ops, Real, soft_max
from shoal.plan.pool_work import PoolWork
from shoal.specs.errors import SpecError


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction in seconds, with the interval that should contain the truth nine times in ten."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BatchShape:
    """One step's work. `prefill` holds (new tokens, tokens already in the cache) of each prompt chunk."""

    prefill: tuple[tuple[int, int], ...] = ()
    decode: int = 0
    """Sequences that compute one token each."""
    decode_context: int = 0
    """Tokens in the cache of those sequences, summed."""
    drafts: int = 0
    """Speculative tokens to verify for each decoding sequence."""

    def __post_init__(self) -> None:
        for field in ("decode", "decode_context", "drafts"):
            if getattr(self, field) < 0:
                raise SpecError(f"batch.{field}", getattr(self, field), "0 or more")
        if any(new < 1 or context < 0 for new, context in self.prefill):
            raise SpecError("batch.prefill", self.prefill, "chunks of 1 or more new tokens after 0 or more cached")


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds by cause; their sum is the step. The largest is what binds."""

    weights: Real
    """Reading dense weights or multiplying them, whichever is longer."""
    experts: Real
    attention: Real
    """Reading the cache or computing attention, whichever is longer."""
    communication: Real
    overhead: Real

    @property
    def total(self) -> Real:
        return self.weights + self.experts + self.attention + self.communication + self.overhead


def _communication(work: PoolWork, k: Constants, tokens: Real, share: Real, ops: Ops) -> Real:
    """Seconds of a pass's collectives; `tokens` rows on each attention rank.

    An all-reduce has a latency that grows with log₂ of the ranks, and moves 2(n−1)/n of its bytes over the link.
    With attention data parallelism, experts are reached by dispatch in fp8 and combine in bf16 instead: k·h·(1 + 2)
    bytes a token, of which 1/n stays at home.
    """
    row = tokens * work.hidden * 2.0
    pace = work.link * share
    attention = k.reduce_latency * (1.0 + k.reduce_growth * work.tp_doublings) + 2.0 * row * work.tp_away / pace
    latency = k.reduce_latency * (1.0 + k.reduce_growth * work.span_doublings)
    reduced = latency + 2.0 * row * work.span_away / pace
    exchanged = 2.0 * latency + 1.5 * row * work.fan * work.span_away / pace
    ffn = ops.where(work.exchanges > 0.5, exchanged, reduced)
    near = work.layers * (ops.where(work.tp > 1.5, attention, 0.0) + ops.where(work.span > 1.5, ffn, 0.0))
    hop = k.far_latency + row / work.far_link
    return near + (work.pp - 1.0 + work.far * 2.0 * work.layers) * hop


def _experts(work: PoolWork, k: Constants, tokens: Real, rate: Real, ops: Ops) -> Real:
    """Seconds of the routed experts for `tokens` of the whole worker."""
    untouched = ops.exp(ops.maximum(tokens * work.touched_log, -60.0))
    read = work.expert_bytes * (1.0 - untouched) / (work.bandwidth * k.expert_bandwidth)
    # Each touched expert multiplies whole tiles of rows, however few tokens chose it.
    padded = k.expert_tile * work.experts * (1.0 - untouched) / ops.maximum(work.top_k, 1.0)
    multiplied = work.expert_ops * (tokens + padded) / (work.expert_rate * rate)
    crowded = 1.0 + k.imbalance * (work.ep / (tokens * ops.maximum(work.top_k, 1.0))) ** 0.5
    crowded = ops.where(work.ep > 1.5, ops.minimum(crowded, 3.0), 1.0)
    return ops.where(work.moe_layers > 0, soft_max(read, multiplied) * crowded, 0.0)


def decode_terms(
    work: PoolWork, k: Constants, sequences: Real, context: Real, ops: Ops = ARRAY, width: Real = 1.0
) -> Terms:
    """One decode step of `sequences` on each attention rank, each with `context` cached tokens.

    `width` tokens of each sequence are computed at once (1 + drafts): weights are read once, products, cache reads
    and messages are multiplied.
    """
    tokens = sequences * width
    whole = tokens * work.attention_dp
    read = work.dense_bytes / (work.bandwidth * k.weight_bandwidth)
    multiplied = work.attention_ops * tokens / (work.dense_rate * k.decode_rate)
    seen = ops.minimum(context, work.attended)
    # Ordinary MLA or GQA kernels read a cache element once for all heads; bytes as `cache_bytes` says.
    cached = work.kv_elements * seen + work.window_elements * ops.minimum(context, work.window)
    cache = sequences * (cached * k.cache_bytes + work.state_bytes) / (work.bandwidth * k.kv_bandwidth)
    scores = tokens * work.decode_ops * seen / (work.attention_rate * k.decode_attention_rate)
    overhead = (
        work.layers * k.layer
        + work.moe_layers * k.moe_layer
        + k.step
        + tokens * k.token
        + ops.where(work.attention_dp > 1.5, work.layers * k.data_parallel_layer, 0.0)
    )
    return Terms(
        weights=soft_max(read, multiplied),
        experts=_experts(work, k, whole, k.decode_rate, ops),
        attention=soft_max(cache, scores),
        communication=_communication(work, k, tokens, k.link_share, ops),
        overhead=overhead,
    )


def prefill_terms(work: PoolWork, k: Constants, tokens: Real, cached: Real, ops: Ops = ARRAY) -> Terms:
    """One prefill pass of `tokens` on each attention rank, after `cached` tokens of the same prompt."""
    whole = tokens * work.attention_dp
    multiplied = work.attention_ops * tokens / (work.dense_rate * k.prefill_rate)
    read = work.dense_bytes / (work.bandwidth * k.weight_bandwidth)
    span = ops.minimum(tokens / 2.0 + cached, work.attended)
    window = ops.minimum(tokens / 2.0 + cached, work.window)
    local = work.window_elements / ops.maximum(work.kv_elements, 1.0)
    scores = work.prefill_ops * tokens * (span + local * window) / (work.attention_rate * k.prefill_attention_rate)
    return Terms(
        weights=soft_max(read, multiplied),
        experts=_experts(work, k, whole, k.prefill_expert_rate, ops),
        attention=scores,
        communication=_communication(work, k, tokens, k.prefill_link_share, ops),
        overhead=work.layers * k.prefill_layer + tokens * k.prefill_token,
    )


@dataclass(frozen=True, slots=True)
class PrefillTotals:
    """Sums over the prompt chunks of one step, which are all that its time depends on."""

    chunks: int
    tokens: int
    """New tokens."""
    cached: int
    """Σ chunk · tokens cached before it."""
    pairs: int
    """Σ chunk²."""


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Time of a step by the roofline model: float formulas with everything about model and machine precomputed."""

    work: PoolWork
    constants: Constants
    spread: float = 1.35
    """Upper end of the 90 % interval over the mean (and the mean over the lower end)."""

    def terms(self, batch: BatchShape) -> Terms:
        """Seconds by cause of one step. Prefill and decode of a mixed step share one reading of the weights."""
        totals = PrefillTotals(
            len(batch.prefill),
            sum(chunk for chunk, _ in batch.prefill),
            sum(chunk * context for chunk, context in batch.prefill),
            sum(chunk * chunk for chunk, _ in batch.prefill),
        )
        return self.terms_of(totals, batch.decode, batch.decode_context, batch.drafts)

    def terms_of(self, prefill: "PrefillTotals", decode: int, decode_context: int, drafts: int = 0) -> Terms:
        """The same, of a batch that is given by its sums."""
        work, k = self.work, self.constants
        parts: list[Terms] = []
        if decode:
            sequences = max(decode / work.attention_dp, 1.0)
            parts.append(decode_terms(work, k, sequences, decode_context / decode, SCALAR, 1.0 + drafts))
        if prefill.tokens:
            new, ranks = prefill.tokens, min(work.attention_dp, float(prefill.chunks))
            parts.append(_chunks(work, k, new / ranks, prefill.cached / new, prefill.pairs / new))
        if not parts:
            return Terms(0.0, 0.0, 0.0, 0.0, 0.0)
        return parts[0] if len(parts) == 1 else _mixed(work, k, parts[0], parts[1])

    def seconds(self, batch: BatchShape) -> Estimate:
        """Seconds of one step of this batch on one replica."""
        mean = self.terms(batch).total
        return Estimate(mean, mean / self.spread, mean * self.spread)


def _chunks(work: PoolWork, k: Constants, tokens: float, cached: float, mean_chunk: float) -> Terms:
    """Prefill of several chunks together: `mean_chunk` (weighted by tokens) sets how far attention reaches."""
    whole = prefill_terms(work, k, tokens, 0.0, SCALAR)
    reach = min(mean_chunk / 2.0 + cached, work.attended)
    scores = work.prefill_ops * tokens * reach / (work.attention_rate * k.prefill_attention_rate)
    return Terms(whole.weights, whole.experts, scores, whole.communication, whole.overhead)


def _mixed(work: PoolWork, k: Constants, decode: Terms, prefill: Terms) -> Terms:
    """Decode riding on a prefill pass: weights are read and layers launched once, the rest adds up."""
    return Terms(
        weights=max(decode.weights, prefill.weights),
        experts=max(decode.experts, prefill.experts),
        attention=decode.attention + prefill.attention,
        communication=max(decode.communication, prefill.communication),
        overhead=max(decode.overhead, prefill.overhead),
    )
