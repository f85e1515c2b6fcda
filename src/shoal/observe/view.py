"""What the dashboard shows, as `GET /api/fleet` answers it: one shape for a fleet and for a single replica.

Times in seconds, ratios from 0 to 1; null where nothing is known.
"""

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that ended within the window."""

    ttft: Percentiles | None = None
    """Arrival to first token."""
    tpot: Percentiles | None = None
    """Inter-token latency (ITL): mean time between tokens, per request."""
    e2e: Percentiles | None = None
    """Arrival to the end."""
    queue: Percentiles | None = None
    """In the admission queue."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    window_seconds: float
    requests_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    output_tokens_per_second: float = 0.0
    output_tokens_per_second_device: float | None = None
    """A device is a rank: a GPU, or a share of this machine's cores."""
    running: int = 0
    waiting: int = 0
    """In the admission queue and inside engines."""
    predicted_hit_ratio: float | None = None
    """Prompt tokens that the router expected to be reused."""
    actual_hit_ratio: float | None = None
    """Prompt tokens that engines say they reused."""
    outcomes: dict[str, int] = {}
    """Requests since the start, by how they ended."""


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pool: str
    state: str
    """starting, ready, unhealthy, set aside, breaker open, draining, backoff, failed"""
    why: str = ""
    models: tuple[str, ...] = ()
    engine: str = ""
    running: int = 0
    waiting: int = 0
    batch_sequences: float | None = None
    """Sequences of a step, lately."""
    rank_waiting: float | None = None
    """Share of its ranks' step time spent waiting for each other: lately in a fleet, since the start for a single
    replica; null for one rank."""
    pending_tokens: float = 0.0
    """Prompt tokens that wait there to be computed, by this gateway's count."""
    role: str = "both"
    inflight: int = 0
    """Leases that this gateway holds there."""
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    hit_ratio: float | None = None
    trust: float = 1.0
    tokens_per_second: float = 0.0
    ttft: float | None = None
    tpot: float | None = None
    restarts: int = 0
    pid: int | None = None
    age_seconds: float = 0.0
    """In its state."""
    devices: int = 1


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """One routing decision, and what came of it once that is known."""

    age_seconds: float
    request_id: str
    model: str
    replica: str
    reason: str
    predicted_hit: int = 0
    actual_hit: int | None = None
    prompt_tokens: int = 0
    predicted_ttft: float = 0.0
    ttft: float | None = None
    outcome: str | None = None
    """None: it runs."""


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    version: str
    uptime_seconds: float
    status: str
    """ready, degraded, down or draining"""
    policy: str = ""
    totals: Totals
    latency: Latency
    replicas: tuple[ReplicaView, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    """Newest first."""
