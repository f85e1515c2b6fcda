"""What goes from the core to the ranks besides the plan itself."""

import msgspec

from shoal.engine.sampling.params import SamplingParams
from shoal.policy.batching.plan import StepPlan
from shoal.policy.experts import ExpertPlacement


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """Sampler state of a sequence that a rank sees for the first time, or again after preemption."""

    sequence_id: int
    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    lora: str | None = None
    """The adapter that its rows are computed with."""


class StepCommand(msgspec.Struct, frozen=True, array_like=True):
    """One step: the scheduler's plan, and the sampling state of every sequence whose entry in it is a `reset`."""

    plan: StepPlan
    admissions: tuple[Admission, ...] = ()
    placement: ExpertPlacement | None = None
    """Experts move before anything is computed: from this step on they are where this says."""
    report_load: bool = False
    """Ranks say after this step what went to which expert since they last did."""
