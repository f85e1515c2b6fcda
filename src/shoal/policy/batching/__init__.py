"""What one replica computes next: block pool, prefix hashing, scheduler, step plans."""

from shoal.policy.batching.blocks import BlockPool, IntegrityError
from shoal.policy.batching.config import SchedulerConfig, SchedulerStats
from shoal.policy.batching.content import ChainHasher, Piece
from shoal.policy.batching.counted import CountedRequest, CountedScheduler, Ended, Quiet
from shoal.policy.batching.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from shoal.policy.batching.handoff import HeldPrefix
from shoal.policy.batching.lanes import LaneScheduler
from shoal.policy.batching.plan import SampledSequence, ScheduledSequence, StepPlan, StepResult, TokenLogprobs
from shoal.policy.batching.prefix import Extras, PrefixHasher, block_hash, make_extras
from shoal.policy.batching.request import (
    FinishReason,
    Output,
    Request,
    RequestRefused,
    RequestTooLong,
    Times,
)
from shoal.policy.batching.scheduler import Scheduler

__all__ = [
    "AllBlocksCleared",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "ChainHasher",
    "CountedRequest",
    "CountedScheduler",
    "Ended",
    "Extras",
    "FinishReason",
    "HeldPrefix",
    "IntegrityError",
    "KvEvent",
    "LaneScheduler",
    "Output",
    "Piece",
    "PrefixHasher",
    "Quiet",
    "Request",
    "RequestRefused",
    "RequestTooLong",
    "SampledSequence",
    "ScheduledSequence",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
    "Times",
    "TokenLogprobs",
    "block_hash",
    "make_extras",
]
