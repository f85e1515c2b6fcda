"""What routing decides on and what it answers. Everything is in tokens and seconds; `now` is always passed in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

Need = Literal["blocks", "text", "tokens"]
"""A field of `RouteRequest` that takes work to fill in, done only where an index or a picker needs it."""
NO_NEEDS: frozenset[Need] = frozenset()


@dataclass(slots=True, eq=False)
class RouteRequest:
    """One request as routing and admission see it. Written once, before routing; equal to nothing but itself."""

    id: str
    model: str
    prompt_tokens: int
    """Exact where `tokens` is known, else estimated from the text."""
    max_tokens: int = 256
    """Output tokens expected: the request's limit, or what such requests took lately."""
    tokens: Sequence[int] | None = None
    blocks: Sequence[bytes] = ()
    """Prefix chain of the prompt's text or tokens, one hash for `block_tokens` tokens."""
    block_tokens: float = 32.0
    tail: bytes = b""
    """Hash of the prompt's rest after the last whole block, given all before it; empty: there is none."""
    text: str = ""
    session: str | None = None
    client: str = ""
    """Whose it is: clients get even shares of what is scarce."""
    priority: int = 0
    """Lower is served first."""
    extras: tuple[tuple[str, str], ...] = ()
    """What else the KV depends on: LoRA, cache salt (see `policy.batching.prefix`)."""
    excluded: frozenset[str] = frozenset()
    """Replicas that failed this request already."""
    pool: str | None = None
    weights: str | None = None
    """Only replicas with these weights may take it, as it has begun on one of them; None: any."""
    role: str = "serve"
    """`serve`: a replica that answers (role `both` or `decode`); `prefill`: one that only prepares KV."""
    hits: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens each replica is believed to hold; filled in by the router from its index."""
    charged: Sequence[float] = ()
    """What the blocks from the i-th on are charged, in tokens; empty: all alike."""


@dataclass(slots=True)
class ReplicaState:
    """What is known of one replica. Only the registry writes it; policies read."""

    name: str
    models: frozenset[str]
    pool: str = "default"
    weights: str = ""
    """Equal for replicas that generate the same tokens."""
    role: str = "both"
    healthy: bool = True
    draining: bool = False
    breaker_closed: bool = True
    """False while the breaker lets nothing through."""
    ejected: bool = False
    """A straggler, set aside for a while."""
    inflight: int = 0
    """Legs that hold a lease here; never stale."""
    max_inflight: int = 256
    pending_tokens: float = 0.0
    """Prompt tokens to compute before a new request's: of own leases without a first token, and of others'."""
    decoding: int = 0
    """Sequences that produce tokens now."""
    foreign: int = 0
    """Requests that other gateways or clients have there, by its own gauges."""
    kv_used_tokens: float = 0.0
    kv_capacity_tokens: float = 0.0
    """0: unknown."""
    prefill_rate: float = 4000.0
    """Prompt tokens per second, learned."""
    overhead_seconds: float = 0.0
    """To a first token, whatever the prompt, learned."""
    decode_seconds: float = 0.0
    """What one more running sequence adds to every step, learned."""
    decode_excess: float = 0.0
    """Seconds that an output token takes here beyond what it takes on the pool's others, learned."""
    max_model_len: int = 0
    """0: unknown."""
    fallback: int = 0
    """It serves a model only while no replica with a lower number is available."""
    trust: float = 1.0
    """How far predicted hits came true, 0 to 1."""

    @property
    def serving(self) -> bool:
        """Healthy and not leaving, whatever its breaker says."""
        return self.healthy and not self.draining

    @property
    def available(self) -> bool:
        """Serving, and trusted by its breaker."""
        return self.healthy and not self.draining and self.breaker_closed and not self.ejected

    @property
    def load(self) -> int:
        return self.inflight + self.foreign


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a replica was picked; spelled out only where somebody reads it."""

    policy: str
    why: str
    able: int
    """Replicas that were scored."""
    hit: int | None
    """Tokens found by the policy's index; None: it has none."""
    prompt_tokens: int
    trust: float
    parts: tuple[tuple[str, float], ...]
    """What was scored, in seconds."""

    def __str__(self) -> str:
        trust = f", trust {self.trust:.2f}" if self.hit and self.trust < 0.995 else ""
        about = f" hit {self.hit}/{self.prompt_tokens}{trust}" if self.hit is not None else ""
        parts = " + ".join(f"{name} {seconds:.3f}" for name, seconds in self.parts)
        return f"{self.policy}: {self.why} ({self.able} able){about}{'; ' if parts else ''}{parts}"


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes. One is made for every request: msgspec's structs are made faster than dataclasses."""

    replica: str
    predicted_hit: int
    """Tokens, trust not applied: what the index says."""
    predicted_ttft: float
    predicted_delay: float
    """Everything that was scored, in seconds."""
    because: Reason | str

    @property
    def reason(self) -> str:
        return str(self.because)


@dataclass(frozen=True, slots=True)
class NoReplica:
    """No replica can take it now: `model` (unknown), `busy` (all slots taken) or `down`."""

    kind: Literal["model", "busy", "down"]
    reason: str


class Filter(Protocol):
    waits: bool
    """Whether a request that it keeps from every replica waits for one, instead of being refused."""

    def keep(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> list[ReplicaState]: ...


class Scorer(Protocol):
    name: str

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float: ...


class Picker(Protocol):
    needs: frozenset[Need]

    def pick(
        self, request: RouteRequest, scored: Sequence[tuple[float, ReplicaState]], now: float
    ) -> tuple[float, ReplicaState, str]: ...

    def forget(self, replica: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A chain of blocks that an engine announced. `hashes` are its own names: integers or bytes, by version."""

    hashes: tuple[bytes | int, ...]
    parent: bytes | int | None
    tokens: tuple[int, ...]
    block_size: int
    extras: tuple[tuple[str, str], ...] = ()
    """Of the first block of a sequence."""


class EventIndex(Protocol):
    """Blocks that replicas hold, as KV events say."""

    def stored(self, replica: str, blocks: StoredBlocks) -> bool: ...
    def removed(self, replica: str, hashes: Sequence[object]) -> None: ...
    def cleared(self, replica: str) -> None: ...


class Index(Protocol):
    """Which replica holds which prefix."""

    needs: frozenset[Need]

    @property
    def events(self) -> EventIndex | None:
        """Where KV events go; None: it learns nothing from them."""

    def hits(self, request: RouteRequest, now: float) -> Mapping[str, int]: ...
    def charged(self, request: RouteRequest) -> Sequence[float]: ...
    def chosen(self, request: RouteRequest, replica: str, now: float) -> None: ...
    def knows(self, replica: str) -> bool:
        """Whether the replica announces what it holds, so that a prompt's tokens find it."""

    def forget(self, replica: str) -> None: ...
