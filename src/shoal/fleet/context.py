"""What all replicas of a fleet share."""

from dataclasses import dataclass
from pathlib import Path

from shoal.fleet.config import SupervisorConfig
from shoal.fleet.registry import Registry


@dataclass(frozen=True, slots=True)
class FleetContext:
    """Given to each replica when it is started."""

    registry: Registry
    settings: SupervisorConfig
    log_dir: Path
    threads: int
    kv_share: float | None
    secret: str | None
    kv_key: str | None = None
    """Shared by replicas that hand KV to each other."""
    tracing: bool = False
