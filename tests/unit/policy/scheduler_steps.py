"""Short names for driving a scheduler by hand, with answers that are made up."""

from shoal.policy.batching import Request, SampledSequence, Scheduler, SchedulerConfig, StepPlan, StepResult


def config(**changes: object) -> SchedulerConfig:
    return SchedulerConfig(**{"num_blocks": 65, "block_size": 4, "max_model_len": 128, **changes})  # type: ignore[arg-type]


def request(request_id: int, length: int = 6, **fields: object) -> Request:
    """Prompts of different requests share nothing unless `prompt` is given."""
    prompt = tuple(range(1000 * request_id, 1000 * request_id + length))
    return Request(**{"id": request_id, "prompt": prompt, "max_tokens": 4, **fields})  # type: ignore[arg-type]


def rows(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(id, start, rows) of every share."""
    assert plan is not None
    return [(share.sequence_id, share.start, len(share.tokens)) for share in plan.sequences]


def answer(plan: StepPlan, token: int = 7) -> StepResult:
    return StepResult(
        plan.step, tuple(SampledSequence(s.sequence_id, (token,) if s.sample else ()) for s in plan.sequences)
    )


def step(scheduler: Scheduler, now: float = 0.0, token: int = 7) -> StepPlan:
    plan = scheduler.schedule(now)
    assert plan is not None
    scheduler.complete(plan, answer(plan, token), now)
    scheduler.check()
    return plan
