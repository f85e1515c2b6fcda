"""Data-parallel lanes of one replica: a scheduler a lane, requests dealt to lanes, plans joined into waves.

    add ──► least loaded lane ──► Scheduler 0 ─┐
                                  Scheduler 1 ─┴─► wave: a StepPlan with one a lane, an empty one for an idle lane

A lane has its own blocks and its own prefix cache, so a request whose first block a lane has seen goes there,
unless that lane has clearly more to do. Pure, as the schedulers are.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from shoal.policy.batching.blocks import IntegrityError
from shoal.policy.batching.config import SchedulerConfig, SchedulerStats
from shoal.policy.batching.events import KvEvent
from shoal.policy.batching.plan import StepPlan, StepResult
from shoal.policy.batching.request import Asked, FinishReason, Output
from shoal.policy.batching.scheduler import Scheduler

AFFINITY_SLACK = 2
"""Live requests that a lane may have more than the least loaded one and still get a request for its prefix."""
_REMEMBERED = 4096
"""First blocks whose lane is remembered, the least recently used forgotten first."""


class LaneScheduler:
    """`Scheduler`'s interface over several lanes. `now` as there."""

    def __init__(self, config: SchedulerConfig, lanes: int) -> None:
        """`config` is each lane's. Raises ValueError for less than one lane."""
        if lanes < 1:
            raise ValueError(f"lanes is {lanes}; it must be at least 1")
        self.config = config
        self._lanes = tuple(Scheduler(config) for _ in range(lanes))
        self._owner: dict[int, int] = {}
        """Lane of each request that is live, or ended while in flight."""
        self._load = [0] * lanes
        """Live requests by lane."""
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._in_flight: dict[int, StepPlan] = {}
        self._steps = 0

    # What callers ask

    def add(self, request: Asked, now: float) -> None:
        """Queue a request. Raises RequestRefused if it could never be served."""
        first = request.first_block(self.config.block_size)
        # An id that is live is refused by its own lane's scheduler.
        lane = self._owner[request.id] if request.id in self._owner else self._choose(first)
        self._lanes[lane].add(request, now)
        self._owner[request.id] = lane
        self._load[lane] += 1
        self._seen[first] = lane
        self._seen.move_to_end(first)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _choose(self, first: Hashable) -> int:
        least = min(range(len(self._lanes)), key=lambda lane: self._load[lane])
        known = self._seen.get(first) if self.config.prefix_caching else None
        if known is not None and self._load[known] <= self._load[least] + AFFINITY_SLACK:
            return known
        return least

    def abort(self, request_id: int) -> Output | None:
        """See `Scheduler.abort`."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: int, reason: FinishReason, error: str | None = None) -> Output | None:
        """See `Scheduler.finish`."""
        lane = self._owner.get(request_id)
        if lane is None:
            return None
        output = self._lanes[lane].finish(request_id, reason, error)
        if output is not None:
            self._left(request_id)
        return output

    def _left(self, request_id: int) -> None:
        self._load[self._owner.pop(request_id)] -= 1

    def propose(self, request_id: int, drafts: tuple[int, ...]) -> bool:
        """See `Scheduler.propose`."""
        lane = self._owner.get(request_id)
        return lane is not None and self._lanes[lane].propose(request_id, drafts)

    def has_work(self) -> bool:
        return any(lane.has_work() for lane in self._lanes)

    # One step

    def schedule(self, now: float) -> StepPlan | None:
        """The next wave; None if no lane has anything to compute or as many are in flight as allowed."""
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            return None
        taken = [wave.micro_batch for wave in self._in_flight.values()]
        micro_batch = next(index for index in range(self.config.max_plans_in_flight) if index not in taken)
        made = [lane.schedule(now) for lane in self._lanes]
        if all(plan is None for plan in made):
            return None
        plans = tuple(StepPlan(self._steps, micro_batch, ()) if plan is None else plan for plan in made)
        wave = StepPlan(
            step=self._steps,
            micro_batch=micro_batch,
            sequences=tuple(entry for plan in plans for entry in plan.sequences),
            lanes=plans,
        )
        self._in_flight[wave.step] = wave
        self._steps += 1
        return wave

    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Take in what a wave yielded. Raises ValueError if it is not in flight."""
        if result.step != plan.step or plan.step not in self._in_flight:
            raise ValueError(
                f"result of step {result.step} for wave {plan.step}; in flight: {list(self._in_flight)}"
            )
        wave = self._in_flight.pop(plan.step)
        sampled = {entry.sequence_id: entry for entry in result.sequences}
        outputs: list[Output] = []
        for lane, part in zip(self._lanes, wave.lanes, strict=True):
            if part.sequences:
                answers = tuple(sampled[s.sequence_id] for s in part.sequences if s.sequence_id in sampled)
                outputs.extend(lane.complete(part, StepResult(part.step, answers), now))
        for output in outputs:
            if output.finish_reason is not None:
                self._left(output.request_id)
        return outputs

    # What it knows

    def stats(self) -> SchedulerStats:
        """The lanes' figures added up; steps and plans in flight are waves."""
        every = [lane.stats() for lane in self._lanes]

        def total(of: Callable[[SchedulerStats], int]) -> int:
            return sum(of(stats) for stats in every)

        return SchedulerStats(
            waiting=total(lambda s: s.waiting),
            running=total(lambda s: s.running),
            plans_in_flight=len(self._in_flight),
            blocks_total=total(lambda s: s.blocks_total),
            blocks_free=total(lambda s: s.blocks_free),
            blocks_cached=total(lambda s: s.blocks_cached),
            blocks_owned=total(lambda s: s.blocks_owned),
            steps=self._steps,
            scheduled_tokens=total(lambda s: s.scheduled_tokens),
            preemptions=total(lambda s: s.preemptions),
            queried_tokens=total(lambda s: s.queried_tokens),
            hit_tokens=total(lambda s: s.hit_tokens),
            finished=total(lambda s: s.finished),
        )

    def take_events(self) -> list[KvEvent]:
        """KV events of all lanes since the last call, lane by lane."""
        return [event for lane in self._lanes for event in lane.take_events()]

    def reset_prefix_cache(self) -> None:
        """See `Scheduler.reset_prefix_cache`."""
        for lane in self._lanes:
            lane.reset_prefix_cache()
        self._seen.clear()

    def check(self) -> None:
        """Prove that every lane's books balance and that loads are those of the lanes; raises IntegrityError."""
        for lane in self._lanes:
            lane.check()
        counted = [list(self._owner.values()).count(lane) for lane in range(len(self._lanes))]
        if counted != self._load:
            raise IntegrityError(f"live requests by lane are {counted}, counted as {self._load}")
        if not self.has_work() and self._owner:
            raise IntegrityError(f"requests {sorted(self._owner)} have an owner and are not live")
