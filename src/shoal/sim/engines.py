"""Engines as settings of one scheduler, and where each deviates from what is simulated.

Budgets, sequence limits and memory come from the catalog (`specs.catalog.engines`); here is how an engine admits
and preempts. Sources: vLLM v1 `core/sched/scheduler.py` (0.19 to 0.22), SGLang `managers/schedule_batch.py` and
`schedule_policy.py` (0.5), llama.cpp `tools/server` (b6500 and later), TensorRT-LLM's capacity scheduler
(`GUARANTEED_NO_EVICT`), all as published in 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from shoal.policy.batching import SchedulerConfig

_SHOAL = SchedulerConfig(num_blocks=2, block_size=1, max_model_len=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBehavior:
    """How an engine admits and preempts."""

    headroom: float = _SHOAL.headroom
    preempts: Literal["lowest", "latest"] = _SHOAL.preempts
    starvation_bound: float = _SHOAL.starvation_bound
    """Seconds; engines without ageing never reach it."""
    deviations: tuple[str, ...] = ()
    """Where the simulation differs: what is simulated, and unlike what."""


_NEVER = 1e9

ENGINES: Mapping[str, EngineBehavior] = MappingProxyType({
    "shoal": EngineBehavior(),
    "vllm": EngineBehavior(
        headroom=0.0,
        preempts="latest",
        starvation_bound=_NEVER,
        deviations=("a step's results are taken in before the next is planned (no asynchronous scheduling)",),
    ),
    "sglang": EngineBehavior(
        headroom=0.0,
        preempts="latest",
        starvation_bound=_NEVER,
        deviations=(
            "prefill and decode share a step, as its mixed-chunk option has it; by default prefill goes first",
            "prefixes are reused by blocks, not by tokens",
            "memory is not set aside for expected outputs",
        ),
    ),
    "trtllm": EngineBehavior(
        headroom=1.0,
        starvation_bound=_NEVER,
        deviations=(
            "requests are admitted by the blocks of their prompts, where by default all that one may need are "
            "set aside and nobody is preempted",
        ),
    ),
    "llamacpp": EngineBehavior(
        headroom=0.0,
        preempts="latest",
        starvation_bound=_NEVER,
        deviations=(
            "sequences share one pool of blocks, where slots have equal parts of the context",
            "prefixes are found in the whole pool, not in a slot's last prompt",
        ),
    ),
})  # fmt: skip
"""By the planner's name of the engine."""


def behavior_of(engine: str) -> EngineBehavior:
    """The behavior of an engine; of one that is not known, our own."""
    return ENGINES.get(engine, ENGINES["shoal"])
