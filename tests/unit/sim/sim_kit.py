"""Small fleets and loads for tests of the simulator."""

from dataclasses import replace

from shoal.policy.batching import SchedulerConfig
from shoal.sim import LinearSeconds, ReplicaSpec, SimulatedFleet
from shoal.workload.load import Load, Segment, Session, Turn

STEP = LinearSeconds(step=6e-3, prompt_token=40e-6, sequence=50e-6, cached_token=30e-9, pair=1e-9)
SCHEDULER = SchedulerConfig(
    num_blocks=600, block_size=16, max_model_len=8192, token_budget=512, max_sequences=64, starvation_bound=30.0
)


def spec(name: str = "a", **changes: object) -> ReplicaSpec:
    return replace(ReplicaSpec(name=name, scheduler=SCHEDULER, step=STEP), **changes)  # type: ignore[arg-type]


def fleet(count: int = 2, **changes: object) -> SimulatedFleet:
    specs = tuple(spec(f"r{i}") for i in range(count))
    return replace(SimulatedFleet(replicas=specs), **changes)  # type: ignore[arg-type]


def single(*arrivals: tuple[float, int, int]) -> Load:
    """Sessions of one turn: (seconds, prompt tokens, output tokens)."""
    sessions = [
        Session((Turn((Segment(f"p{i}", prompt),), output),), at) for i, (at, prompt, output) in enumerate(arrivals)
    ]
    return Load(tuple(sessions), "given arrivals", rate=1.0)
