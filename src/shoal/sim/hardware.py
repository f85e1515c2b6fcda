"""A replica as the planner knows it: whether the model fits, how much KV there is, how long a step takes."""

from dataclasses import dataclass, replace

import msgspec

from shoal.plan.artifact import Artifact
from shoal.plan.candidates import Candidate, gate
from shoal.plan.deployment import Deployment, Pool
from shoal.plan.designs import Miss
from shoal.plan.estimator import ServingEstimator
from shoal.plan.kv import kv_bytes_per_token, kv_dtype_name
from shoal.plan.question import Question, capabilities_of, engines_of
from shoal.plan.sequences import Stored, memory_at
from shoal.plan.step_time import PrefillTotals, RooflineStepTime
from shoal.plan.work import model_work
from shoal.policy.batching import SchedulerConfig
from shoal.sim.engines import behavior_of
from shoal.sim.factors import front_of, step_of, widened
from shoal.sim.timing import FittedSeconds, StepWork
from shoal.specs.catalog import Catalog
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.traffic import Lengths, Slo, Workload

BLOCK = 16
_SMALLEST = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees that are tried where no layout is named."""
_TYPICAL = 8192
"""Tokens of the sequence by which the cache is counted in tokens, where layers keep a window only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one replica is: a model on devices, with an engine's settings. None: the engine's default."""

    model: ModelSpec
    accelerator: Accelerator
    layout: Layout | None = None
    """None: the smallest tensor-parallel degree that holds the model."""
    engine: str = "vllm"
    engine_version: str | None = None
    behaves_as: str | None = None
    """The engine whose way to admit and preempt it has, of `sim.engines`; None: `engine`."""
    weights: str = "checkpoint"
    kv_dtype: str | None = None
    memory_utilization: float | None = None
    max_num_seqs: int | None = None
    token_budget: int | None = None
    max_model_len: int | None = None
    """None: what the model was made for, or what fits."""
    block_size: int = BLOCK
    num_blocks: int | None = None
    """KV blocks, the null block included, where they are known; None: what memory holds."""
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class PlannedSeconds:
    """The planner's roofline as a simulator's step times."""

    roofline: RooflineStepTime
    factor: float = 1.0
    """Multiplies every step: 1/`spread` and `spread` are the ends of the 90 % interval."""

    def seconds(self, work: StepWork) -> float:
        """See `timing.StepSeconds`."""
        prefill = PrefillTotals(work.chunks, work.tokens, work.cached, work.pairs)
        return float(self.roofline.terms_of(prefill, work.decode, work.context).total) * self.factor

    @property
    def spread(self) -> float:
        """The upper end of the 90 % interval of a step over its mean."""
        return self.roofline.spread

    def scaled(self, factor: float) -> "PlannedSeconds":
        """All steps `factor` times as long."""
        return replace(self, factor=self.factor * factor)


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """A machine that can be: its scheduler's settings, its step times, and how it was counted."""

    candidate: Candidate
    scheduler: SchedulerConfig
    step: PlannedSeconds | FittedSeconds
    prior: PlannedSeconds
    """The planner's step times, whatever was fitted."""
    front: float
    """Seconds between a request's arrival and its reaching the scheduler."""
    kv_token_bytes: float
    engine: str
    deployment: Deployment
    """It as the planner's estimator asks for it."""

    @property
    def model_name(self) -> str:
        return self.deployment.model.name

    @property
    def description(self) -> str:
        """`tp1 on h100_sxm (checkpoint weights, bf16 cache), vllm`."""
        return f"{self.candidate.label}, {self.engine}"

    @property
    def deviations(self) -> tuple[str, ...]:
        """Where the simulation differs from such a replica: what is simulated, and unlike what."""
        found = tuple(f"{self.engine}: {text}" for text in behavior_of(self.engine).deviations)
        if self.candidate.layout.dp > 1:
            found += ("attention data-parallel ranks have one scheduler and one cache, of their common size",)
        return found


def planned_replica(machine: Machine, catalog: Catalog, constants: Artifact | None = None) -> PlannedReplica:
    """Count a machine's memory and time. Raises SpecError with the planner's reason for one that can't be."""
    if machine.layout is not None:
        found = _candidate(machine, machine.layout, catalog)
    else:
        most = machine.accelerator.devices_per_node
        tried = [_candidate(machine, Layout(tp=tp), catalog) for tp in _SMALLEST if tp <= most]
        found = next((c for c in tried if isinstance(c, Candidate)), tried[-1])
    if isinstance(found, Miss):
        accepted = f"a layout that can be: {found.reason}: {found.detail} ({found.label})"
        raise SpecError("layout", (machine.layout or found.layout or Layout()).label(), accepted)
    if found.layout.pp > 1:
        raise SpecError("layout", found.layout.label(), "no pipeline stages: steps that overlap are not simulated")
    deployment = _deployment(machine, found)
    # Factors were fitted to what is said of everybody's machine, without a user's own measurements.
    common = None if constants is None else msgspec.structs.replace(constants, own=())
    prior = PlannedSeconds(ServingEstimator(common).step_time(deployment))
    own = PlannedSeconds(ServingEstimator(constants).step_time(deployment))
    step, front = _step_and_front(found, deployment.model.name, prior, own, constants)
    tokens = kv_bytes_per_token(machine.model, found.kv_dtype)
    engine = machine.behaves_as or found.engine.engine
    return PlannedReplica(found, _scheduler(machine, found), step, prior, front, tokens, engine, deployment)


def _step_and_front(
    found: Candidate, model: str, prior: PlannedSeconds, own: PlannedSeconds, constants: Artifact | None
) -> tuple[PlannedSeconds | FittedSeconds, float]:
    """What a user's own runs say, where there are any of this engine on this machine; else the planner's."""
    place = found.engine.engine, found.accelerator.name
    known = [s for s in constants.steps if (s.engine, s.machine) == place] if constants is not None else []
    if not known:
        return own, float(own.roofline.constants.request)
    same = next((s for s in known if s.model == model), None)
    fit = same or known[0]
    spread = fit.spread if same is not None else widened(fit.spread)
    return FittedSeconds(step_of(prior, fit.factors), spread), front_of(fit.factors)


def _candidate(machine: Machine, layout: Layout, catalog: Catalog) -> Candidate | Miss:
    kv = () if machine.kv_dtype is None else (kv_dtype_name(machine.kv_dtype),)
    question = Question(
        machine.model,
        Workload(Lengths(1.0), Lengths(1.0), 1.0),
        Slo(None, None),
        (machine.accelerator,),
        engines_of(catalog, machine.engine, machine.engine_version),
        weights=(machine.weights,),
        kv_dtypes=kv,
        split="never",
        layouts=(layout,),
        replica_limit=max(1, layout.world),
        capabilities=capabilities_of(catalog, machine.engine, machine.engine_version),
        memory_fraction=machine.memory_utilization,
        max_sequences=machine.max_num_seqs,
    )
    results = list(gate(question))
    # The widest cache first: what an engine does unless it is told otherwise.
    return next((r for r in results if isinstance(r, Candidate)), results[-1])


def _scheduler(machine: Machine, found: Candidate) -> SchedulerConfig:
    lanes, size = found.layout.dp, machine.block_size
    behavior = behavior_of(machine.behaves_as or found.engine.engine)
    tokens = _kv_tokens(machine, found)
    blocks = int(tokens // size) * lanes + 1 if machine.num_blocks is None else machine.num_blocks
    if blocks < 3:
        raise SpecError("layout", found.layout.label(), f"room for KV: {tokens:,.0f} tokens are left for it")
    trained, held = machine.model.max_position, (blocks - 1) * size
    if machine.max_model_len is not None and machine.max_model_len > trained:
        accepted = f"at most {trained:,} tokens, what {machine.model.name} was made for"
        raise SpecError("max_model_len", machine.max_model_len, accepted)
    longest = min(machine.max_model_len or trained, held)
    sequences, budget = found.engine.defaults(found.accelerator.device_bytes)
    sequences = (machine.max_num_seqs or sequences) * lanes
    return SchedulerConfig(
        num_blocks=blocks,
        block_size=size,
        max_model_len=longest,
        token_budget=max((machine.token_budget or budget) * lanes, sequences),
        max_sequences=sequences,
        prefix_caching=machine.prefix_caching,
        headroom=behavior.headroom,
        preempts=behavior.preempts,
        starvation_bound=behavior.starvation_bound,
    )


def _kv_tokens(machine: Machine, found: Candidate) -> float:
    """Tokens of KV that the fullest device of one attention rank holds."""
    stored = Stored(found.weights.method, found.kv_dtype, machine.memory_utilization)
    memory = memory_at(
        machine.model,
        found.layout,
        found.accelerator.device_bytes,
        found.engine,
        stored,
        machine.max_num_seqs or found.sequences,
    )
    worst, length = memory.worst, float(min(_TYPICAL, machine.model.max_position))
    return worst.kv_room / max(worst.curve.bytes(length) / length, 1e-9)


def _deployment(machine: Machine, found: Candidate) -> Deployment:
    return Deployment(
        model_work(machine.model),
        found.accelerator,
        found.weights.precision,
        found.engine.engine,
        Pool(found.layout),
        input_tokens=float(_TYPICAL),
        output_tokens=1.0,
        concurrency=1.0,
    )
