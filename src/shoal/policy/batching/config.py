"""The scheduler's settings, and its figures."""

from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of one replica's scheduler. Counts of tokens, blocks and sequences; times in seconds."""

    num_blocks: int
    """KV blocks on every rank, the null block included."""
    block_size: int
    """Tokens a block; also the granularity of prefix reuse."""
    max_model_len: int
    """Prompt and output tokens of one sequence at most."""
    token_budget: int = 2048
    """Rows of one step at most, prefill and decode together."""
    max_sequences: int = 256
    """Sequences with KV blocks at a time at most."""
    chunk_size: int | None = None
    """Rows of one sequence in one step at most (its drafts not counted). None: the budget."""
    prefix_caching: bool = True
    starvation_bound: float = 30.0
    """A request that had no token for so long outranks every priority."""
    max_plans_in_flight: int = 1
    """Plans given out and not completed at most: the number of pipeline stages."""
    headroom: float = 1.0
    """Blocks that stay available, a running sequence, when another is admitted. At 1, a step that admits is
    followed by about `block_size` steps in which nobody has to be preempted; at 0 a full pool can thrash."""
    preempts: Literal["lowest", "latest"] = "lowest"
    """Who gives its blocks back: whoever ranks lowest, or, as in vLLM, whoever was admitted last: a request that
    was preempted and has resumed is preempted again before those that came after it."""
    record_events: bool = False
    """Keep KV events for `Scheduler.take_events`; someone has to call it then."""

    def __post_init__(self) -> None:
        least = {
            "num_blocks": 2,
            "block_size": 1,
            "max_model_len": 2,
            "token_budget": 1,
            "max_sequences": 1,
            "max_plans_in_flight": 1,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size is {self.chunk_size}; it must be at least 1, or None")
        if not self.headroom >= 0:
            raise ValueError(f"headroom is {self.headroom}; it must be at least 0")
        if not self.starvation_bound >= 0:
            raise ValueError(f"starvation_bound is {self.starvation_bound} s; it must be at least 0")

    @property
    def kv_capacity(self) -> int:
        """Tokens whose KV fits in the pool."""
        return (self.num_blocks - 1) * self.block_size


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one moment; the last group counts since the start."""

    waiting: int
    running: int
    """Sequences that own blocks."""
    plans_in_flight: int

    blocks_total: int
    """Without the null block; free + cached + owned."""
    blocks_free: int
    """Nothing worth keeping in them."""
    blocks_cached: int
    """Free too, but a prefix can be reused."""
    blocks_owned: int

    steps: int
    scheduled_tokens: int
    preemptions: int
    queried_tokens: int
    """Prompt tokens looked up in the prefix cache, once a request."""
    hit_tokens: int
    """Of these, found."""
    finished: int

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that are owned, 0 … 1."""
        return self.blocks_owned / self.blocks_total
