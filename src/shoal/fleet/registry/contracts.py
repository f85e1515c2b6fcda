"""What the fleet knows a replica by, and what it asks of the adapter that speaks its dialect."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from shoal.policy.account import ReplicaStats

Role = Literal["both", "prefill", "decode"]


class EngineAdapter(Protocol):
    """A dialect. Everything has a deadline of its own and raises `LegFailed` or `TimeoutError`."""

    async def ready(self) -> bool:
        """Whether it can serve now: a cheap check, made every second or so."""

    async def stats(self) -> ReplicaStats:
        """Its gauges."""

    def kv_events(self) -> "AsyncIterator[RawEvents] | None":
        """Messages of its KV event stream, in order of arrival; None if it has none. Ends when it disconnects."""

    async def replay(self, start: int) -> "list[RawEvents] | None":
        """Messages from sequence number `start` on, up to the latest; None if they are no longer there."""


class RawEvents(msgspec.Struct, frozen=True):
    """One message of a KV event stream: its sequence number and its msgpack payload."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHandle:
    """One replica as configured or launched."""

    name: str
    url: str
    models: tuple[str, ...]
    """Names that clients ask for it by."""
    adapters: tuple[str, ...] = ()
    """Those of `models` that are LoRA adapters."""
    engine_model: str | None = None
    """Name that the replica itself serves the model by; None: whichever the client used."""
    pool: str = "default"
    role: Role = "both"
    adapter: EngineAdapter | None = None
    """None: only passive health, no gauges."""
    api_key: str | None = None
    """What the replica itself demands."""
    max_inflight: int = 256
    max_model_len: int = 0
    max_prompt_bytes: int = 0
    """Of text, which can fit its context at the most; 0: not known."""
    usage_in_stream: bool = True
    """It takes `stream_options.include_usage`."""
    returns_token_ids: bool = False
    """It takes `return_token_ids` and token ids as a prompt: greedy streams can be continued elsewhere."""
    resumes: bool = False
    """It takes `resume_token_ids`: seeded streams can be continued too."""
    any_request_id: bool = True
    """It takes any text as `x-request-id`; False: it is sent UUIDs only."""
    weights: str = ""
    """Equal for replicas that generate the same tokens: streams are carried on among those only."""
    own: bool = False
    """Started by this fleet: no other gateway sends it requests."""
    fallback: int = 0
    """Replicas with a higher number serve a model only while none with a lower one is available."""

    def __repr__(self) -> str:
        return f"ReplicaHandle({self.name!r}, {self.url!r}, pool={self.pool!r}, role={self.role!r})"
