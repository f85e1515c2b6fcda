"""What the engine hands out: increments of a request's answer, and the timings that metrics are made of."""

from typing import Protocol

import msgspec

from shoal.engine.kv_transfer import KvTransferParams
from shoal.engine.ranks.stats import RankStats
from shoal.policy.batching.handoff import HeldPrefix
from shoal.policy.batching.plan import TokenLogprobs


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What is new for one of a request's `n` answers since the last output of the same index."""

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry a token of `token_ids` when log-probabilities were asked for."""
    finish_reason: str | None = None
    """None while it goes on, then `stop`, `length`, `abort` or `error`."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Entry i belongs to prompt position i + 1; sent once, when the prompt is done."""
    error: str | None = None
    constraint_failed: bool = False
    """With `error`: the request's own constraints (a grammar, token lists) are the reason, not the engine."""
    held: HeldPrefix | None = None
    """With the last one, where it was asked for: blocks that wait for another replica."""
    kv_transfer: KvTransferParams | None = None
    """What that replica has to be told."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestTimings(msgspec.Struct, frozen=True, kw_only=True):
    """One finished sequence, in seconds of the engine's clock. None: it never got that far."""

    request_id: str
    arrival: float
    first_scheduled: float | None
    first_token: float | None
    finish: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    finish_reason: str


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """One step: how long it took, what was in it."""

    seconds: float
    sequences: int
    tokens: int
    inter_token: tuple[float, ...] = ()
    """Gap since the same sequence's last token, for each sequence that got one in this step."""


class Observer(Protocol):
    """Who wants to know what happened; called from the core's thread, must not block."""

    def on_step(self, stats: StepStats) -> None:
        """A step is over."""
        return

    def on_finished(self, timings: RequestTimings) -> None:
        """A sequence is over."""
        return


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters of a replica at one moment."""

    waiting: int
    running: int
    kv_total_blocks: int = 0
    kv_used_blocks: int = 0
    """Blocks owned by live sequences."""
    kv_cached_blocks: int = 0
    """Blocks that are free but still hold a reusable prefix."""
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    kv_block_tokens: int = 0
    """Tokens a block; 0: not told."""
    kv_offers: int = 0
    """Prompts whose KV was held for another replica; of these, fetched, and released because nobody came."""
    kv_offers_taken: int = 0
    kv_offers_expired: int = 0
    kv_imported_blocks: int = 0
    kv_imports_failed: int = 0
    """Prompts whose KV was to be taken over and was not, or not wholly: computed here."""
    ranks: tuple[RankStats, ...] = ()
    """Step times by rank; empty for one rank, which waits for nobody."""
