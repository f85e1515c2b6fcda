"""What a gateway is told: keys, limits, deadlines, retries, logs. Read from `fleet.yaml` elsewhere."""

from dataclasses import dataclass, field
from typing import Literal

from shoal.policy.admission import AdmissionConfig
from shoal.policy.retry import RetryConfig
from shoal.policy.routing import RouterConfig

KeyScope = Literal["generate", "observe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """One API key, known by its digest only."""

    name: str
    """Stands for the key in logs and metrics."""
    sha256: str
    """Hex digest of the key."""
    models: tuple[str, ...] | None = None
    """Models it may use; None: all."""
    scopes: tuple[KeyScope, ...] = ("generate",)
    """`generate`: requests to models. `observe`: `/metrics` and `/api/fleet`, which show what all keys do."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: int | None = None
    """Of its requests, whatever they ask for; lower is served first."""

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or any(c not in "0123456789abcdef" for c in self.sha256):
            raise ValueError(f"key {self.name!r}: sha256 must be 64 lower-case hex digits, not the key itself")
        if not self.scopes:
            raise ValueError(f"key {self.name!r}: scopes is (); it must be generate, observe or both")
        for limit in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, limit)
            if value is not None and value < 1:
                raise ValueError(f"key {self.name!r}: {limit} is {value}; it must be at least 1")

    def __repr__(self) -> str:
        return f"KeyConfig({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Times in seconds, sizes in bytes."""

    keys: tuple[KeyConfig, ...] = ()
    """None: everybody may come, as the one client `anonymous`."""
    router: RouterConfig = field(default_factory=RouterConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    max_body_bytes: int = 16 * 2**20
    max_answer_bytes: int = 64 * 2**20
    """Of an answer that isn't streamed."""
    body_seconds: float = 60.0
    """A request's body must have arrived within this."""
    first_byte_seconds: float = 300.0
    """A stream's first token must have come within this."""
    answer_seconds: float = 3600.0
    """An answer that isn't streamed must be whole within this: nothing of it comes before its last token."""
    stall_seconds: float = 60.0
    """A stream that gives nothing for so long is broken."""
    heartbeat_seconds: float = 10.0
    """A stream that is silent for so long gets an SSE comment, so that no proxy takes it for dead; 0: never."""
    reader_seconds: float = 120.0
    """A client that takes nothing for so long is gone."""
    down_seconds: float = 5.0
    """How long a request waits for a replica when none is available."""
    attempts: int = 3
    """Replicas tried for one request at most, before its first byte and for each continuation."""
    retry_share: float = 0.2
    """Retries per request, fleet-wide, at most; keeps them from doubling an overload."""
    continuation: bool = True
    """Continue broken streams on another replica where that is exact."""
    continue_across_engines: bool = False
    """Also on another engine's: greedy text of two engines differs sooner or later, so that it is not exact."""
    tokenize: bool = True
    """Ask a replica for the token ids of text prompts, where replicas announce what they hold."""
    split_threshold_tokens: int = 256
    """Prompts with fewer tokens to compute aren't prefilled on another replica than the one that decodes."""
    prefill_seconds: float = 60.0
    """A prefill on another replica must have been done within this."""
    access_log: bool = False
    prompt_log: str | None = None
    """A file that gets every request body, redacted; None: nothing of a prompt is ever written."""
    redact: tuple[str, ...] = ()
    """Regular expressions blotted out in the prompt log, beyond the built-in ones."""

    def __post_init__(self) -> None:
        positive = ("max_body_bytes", "max_answer_bytes", "body_seconds", "first_byte_seconds", "answer_seconds")
        for name in (*positive, "stall_seconds", "reader_seconds", "attempts"):
            if not getattr(self, name) > 0:
                raise ValueError(f"gateway.{name} is {getattr(self, name)}; it must be greater than 0")
        if not self.heartbeat_seconds >= 0:
            raise ValueError(f"gateway.heartbeat_seconds is {self.heartbeat_seconds}; it must be at least 0")
        names = [key.name for key in self.keys]
        if len(set(names)) != len(names):
            raise ValueError("gateway.keys: names must differ")

    def retry_config(self) -> RetryConfig:
        return RetryConfig(
            attempts=self.attempts, share=self.retry_share, across_engines=self.continue_across_engines
        )
