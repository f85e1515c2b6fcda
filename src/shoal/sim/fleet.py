"""What is simulated: replicas and the settings of the gateway before them."""

from dataclasses import dataclass, field

from shoal.policy.admission import AdmissionConfig
from shoal.policy.batching import SchedulerConfig
from shoal.policy.breaker import BreakerConfig
from shoal.policy.health import HealthConfig
from shoal.policy.restarts import RestartConfig
from shoal.policy.retry import RetryConfig
from shoal.policy.routing import RouterConfig
from shoal.policy.split import SplitConfig
from shoal.sim.timing import StepSeconds
from shoal.specs.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One replica. Times in seconds."""

    name: str
    scheduler: SchedulerConfig
    step: StepSeconds
    """How long a step takes."""
    models: frozenset[str] = frozenset({"model"})
    pool: str = "default"
    role: str = "both"
    """`both`, `prefill` or `decode`."""
    max_inflight: int = 256
    """Requests that the gateway gives it at a time."""
    front: float = 0.0
    """Between the gateway's sending a request and its reaching the scheduler: parsing, tokenizing."""
    back: float = 0.0
    """Between the end of a step and its tokens' reaching the gateway."""
    start: float = 30.0
    """From the start of its process to its first answer: loading, warm-up."""
    kv_token_bytes: float = 0.0
    """Bytes that a token takes in the cache, all ranks together: what a hand-off moves."""
    link_bytes: float | None = None
    """Bytes per second of its link for hand-offs, in either direction; None: the fleet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """Replicas behind one gateway."""

    replicas: tuple[ReplicaSpec, ...]
    router: RouterConfig = field(default_factory=RouterConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    continues: bool = True
    """Streams that break off go on at another replica: engines return token ids, and requests are greedy."""
    first_byte: float = 300.0
    """Seconds to a leg's first token, after which it is given up."""
    stall: float = 60.0
    """Seconds without a token, likewise."""
    down: float = 5.0
    """Seconds that a request waits while no replica of its model is available."""
    connect: float = 3.0
    """Seconds after which a connection to a replica that can't be reached is given up."""
    link_bytes: float = 12.5e9
    """Bytes per second of each replica's link for hand-offs: 100 Gbit/s."""
    link_latency: float = 50e-6
    """Seconds from one replica to another."""

    def __post_init__(self) -> None:
        if not self.replicas:
            raise SpecError("replicas", 0, "1 or more")
        names = [spec.name for spec in self.replicas]
        if len(set(names)) < len(names):
            raise SpecError("replicas", names, "names that differ")
        sizes = {spec.scheduler.block_size for spec in self.replicas}
        if len(sizes) > 1:
            raise SpecError("block_size", sorted(sizes), "one block size for all replicas of a simulation")

    @property
    def model(self) -> str:
        """What a request asks for that names no model."""
        return min(self.replicas[0].models)

    @property
    def block_size(self) -> int:
        """Tokens per KV block, of all replicas."""
        return self.replicas[0].scheduler.block_size
