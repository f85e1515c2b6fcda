"""One replica's loop. Four lines tell it: schedule → execute → complete → deliver.

    add ─► scheduler ─plan─► executor ─► ranks          (policy decides, ranks execute)
                ▲                          │
                └─ complete ◄── result ────┘ ─► detokenize ─► RequestOutput

Not thread-safe: whoever owns the core calls it from one thread (`AsyncEngine` has one, `LLM` uses the caller's).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from shoal.engine.completion import Completion
from shoal.engine.errors import EngineDead
from shoal.engine.executor import Executor
from shoal.engine.messages import Admission, StepCommand
from shoal.engine.outputs import EngineStats, Observer, RequestOutput, RequestTimings, StepStats
from shoal.engine.request import EngineRequest
from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching import (
    Extras,
    KvEvent,
    LaneScheduler,
    Output,
    Request,
    RequestRefused,
    Scheduler,
    StepPlan,
    StepResult,
)
from shoal.policy.experts import ExpertBalancer, ExpertPlacement


class KvEventSink(Protocol):
    """Where a cache's changes go; called from the core's thread after the step that made them, must not block."""

    def publish(self, events: Sequence[KvEvent]) -> None: ...
    def close(self) -> None: ...


class KvStore(Protocol):
    """KV memory by blocks, where blocks may cross to other replicas."""

    def write(self, blocks: Sequence[int], data: bytes) -> None: ...


class EngineCore:
    """Owns the scheduler and the executor; turns requests into outputs, step by step."""

    def __init__(
        self,
        scheduler: Scheduler | LaneScheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        step_timeout: float,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        kv_events: KvEventSink | None = None,
        balancer: ExpertBalancer | None = None,
        kv_store: KvStore | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._tokenizer = tokenizer
        self._timeout = step_timeout
        self.observer = observer
        self.balancer = balancer
        """Decides where experts live; None: they stay."""
        self._placement: ExpertPlacement | None = None
        self._clock = clock
        self._kv_events = kv_events
        self.kv_store = kv_store
        """None: blocks stay where they are."""
        self._handoffs = scheduler.handoffs if isinstance(scheduler, Scheduler) else None
        self._completions: dict[int, Completion] = {}
        self._by_request: dict[str, list[int]] = {}
        self._in_flight: deque[tuple[StepPlan, Future[StepResult], float]] = deque()
        self._ended_early: list[RequestOutput] = []
        self._next_id = 0
        self._prompt_tokens = self._generated_tokens = 0
        self.dead: str | None = None
        """Why the replica can no longer compute; None while it can."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises EngineDead, or RequestRefused for what can never fit; then nothing is kept."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        if request.request_id in self._by_request:
            raise RequestRefused(f"request id {request.request_id!r} is that of a live request; ids must be unique")
        ids: list[int] = []
        try:
            for index in range(request.params.n):
                completion = Completion(request, index, self._next_id, self._tokenizer)
                if completion.ended_before:
                    raise RequestRefused("the output that is given already ends with a stop string")
                hand_off = self.kv_store is not None and _hands_off(request)
                self._scheduler.add(_scheduler_request(completion, self._tokenizer, hand_off), self._clock())
                self._completions[completion.sequence_id] = completion
                ids.append(self._next_id)
                self._next_id += 1
        except RequestRefused:
            for sequence_id in ids:
                self._scheduler.abort(sequence_id)
                del self._completions[sequence_id]
            raise
        self._by_request[request.request_id] = ids

    def abort(self, request_id: str) -> None:
        """Stop a request at any moment; its blocks are free at once, or when the step in flight is over."""
        for sequence_id in self._by_request.get(request_id, []):
            if (output := self._scheduler.abort(sequence_id)) is not None:
                self._ended_early.append(self._deliver(output))

    def has_work(self) -> bool:
        return bool(self._ended_early) or self._scheduler.has_work()

    def step(self) -> list[RequestOutput]:
        """Advance by one step: fill the pipeline, wait for its oldest plan, hand out what is new.

        Raises EngineDead when a step fails as a whole; `fail_all` then ends what was live.
        """
        outputs, self._ended_early = self._ended_early, []
        self._fill()
        if not self._in_flight:
            return outputs
        plan, future, started = self._in_flight.popleft()
        try:
            result = future.result(self._timeout)
        except TimeoutError:
            raise self._die(f"step {plan.step} did not come back within {self._timeout:g} s") from None
        except Exception as error:
            raise self._die(f"step {plan.step} failed: {error}") from error
        now = self._clock()
        if self.balancer is not None and result.expert_loads:
            self._placement = self.balancer.decide(result.expert_loads)
        completed = self._scheduler.complete(plan, result, now)
        if self._kv_events is not None and (events := self._scheduler.take_events()):
            self._kv_events.publish(events)
        if self.observer is not None:
            self.observer.on_step(self._step_stats(plan, completed, now, now - started))
        outputs.extend(self._deliver(output) for output in completed)
        return outputs

    def _fill(self) -> None:
        while len(self._in_flight) < self._executor.max_in_flight:
            now = self._clock()
            plan = self._scheduler.schedule(now)
            if plan is None:
                return
            admissions = tuple(self._admission(s.sequence_id) for s in plan.sequences if s.reset)
            report = self.balancer is not None and self.balancer.wants_load()
            command = StepCommand(plan, admissions, self._placement, report)
            self._placement = None
            self._in_flight.append((plan, self._executor.submit(command), now))

    def _admission(self, sequence_id: int) -> Admission:
        completion = self._completions[sequence_id]
        request = completion.request
        return Admission(sequence_id, completion.params, request.prompt, tuple(completion.token_ids), request.lora)

    def _deliver(self, output: Output) -> RequestOutput:
        completion = self._completions[output.request_id]
        delta = completion.advance(output)
        self._generated_tokens += len(output.tokens)
        if completion.stop_string is not None and output.finish_reason is None:
            # Found by the detokenizer, so the scheduler doesn't know yet.
            self._scheduler.finish(output.request_id, "stop")
        if delta.finished:
            self._retire(completion, output, delta)
            if self._handoffs is not None and (held := self._handoffs.get(completion.sequence_id)) is not None:
                return msgspec.structs.replace(delta, held=held)
        return delta

    # Blocks that cross to other replicas.

    def release_held(self, sequence_id: int) -> None:
        """Nobody needs the blocks that a request left for another replica; again is no error."""
        if self._handoffs is not None:
            self._handoffs.release(sequence_id)

    def known_prefix(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of these are here."""
        return self._handoffs.known(hashes) if self._handoffs is not None else 0

    def import_blocks(
        self,
        tokens: Sequence[int],
        hashes: Sequence[bytes],
        first: int,
        count: int,
        data: bytes,
        extras: Extras = (),
    ) -> bool:
        """Put blocks `first` … of a prompt into the cache; False if there is no room for them now."""
        if self._handoffs is None or self.kv_store is None or (blocks := self._handoffs.begin(count)) is None:
            return False
        try:
            self.kv_store.write(blocks, data)
        except BaseException:
            self._handoffs.drop(blocks)
            raise
        self._handoffs.store(blocks, first, hashes, tokens, extras)
        return True

    def _retire(self, completion: Completion, output: Output, delta: RequestOutput) -> None:
        del self._completions[completion.sequence_id]
        ids = self._by_request[completion.request.request_id]
        ids.remove(completion.sequence_id)
        if not ids:
            del self._by_request[completion.request.request_id]
        self._prompt_tokens += output.prompt_tokens
        if self.observer is not None:
            self.observer.on_finished(
                RequestTimings(
                    request_id=completion.request.request_id,
                    arrival=output.times.arrival,
                    first_scheduled=output.times.first_scheduled,
                    first_token=output.times.first_token,
                    finish=self._clock(),
                    prompt_tokens=output.prompt_tokens,
                    cached_tokens=output.cached_tokens,
                    generated_tokens=len(completion.token_ids) - len(completion.request.output),
                    finish_reason=delta.finish_reason or "",
                )
            )

    def _step_stats(self, plan: StepPlan, outputs: list[Output], now: float, seconds: float) -> StepStats:
        gaps = []
        for output in outputs:
            completion = self._completions[output.request_id]
            if output.tokens and completion.last_token_time is not None:
                gaps.append(now - completion.last_token_time)
            if output.tokens:
                completion.last_token_time = now
        return StepStats(
            seconds=seconds,
            sequences=len(plan.sequences),
            tokens=plan.num_tokens,
            inter_token=tuple(gaps),
        )

    def _die(self, reason: str) -> EngineDead:
        self.dead = reason
        return EngineDead(reason)

    def fail_all(self, reason: str) -> list[RequestOutput]:
        """End every live request with an error; for a replica that can no longer compute."""
        self.dead = reason
        self._in_flight.clear()
        outputs = []
        for sequence_id in list(self._completions):
            output = self._scheduler.finish(sequence_id, "error", reason)
            if output is not None:
                outputs.append(self._deliver(output))
        return outputs

    def stats(self) -> EngineStats:
        """Safe to call from another thread: reads counters only."""
        stats = self._scheduler.stats()
        return EngineStats(
            waiting=stats.waiting,
            running=stats.running,
            kv_total_blocks=stats.blocks_total,
            kv_used_blocks=stats.blocks_owned,
            kv_cached_blocks=stats.blocks_cached,
            preemptions=stats.preemptions,
            prefix_queried_tokens=stats.queried_tokens,
            prefix_hit_tokens=stats.hit_tokens,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            steps=stats.steps,
            kv_block_tokens=self._scheduler.config.block_size,
            ranks=self._executor.rank_stats(),
        )

    def check(self) -> None:
        """Prove that nothing leaked: the pool balances, and no completion outlived its sequence."""
        self._scheduler.check()
        if not self._scheduler.has_work() and (self._completions or self._by_request):
            raise AssertionError(f"completions outlived their sequences: {sorted(self._completions)}")

    def close(self) -> None:
        self._executor.close()
        if self._kv_events is not None:
            self._kv_events.close()


def _hands_off(request: EngineRequest) -> bool:
    return request.kv_transfer is not None and request.kv_transfer.do_remote_decode


def _scheduler_request(completion: Completion, tokenizer: Tokenizer, hand_off: bool) -> Request:
    params = completion.params
    return Request(
        id=completion.sequence_id,
        prompt=completion.request.prompt,
        output=completion.request.output,
        hand_off=hand_off,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
        ignore_eos=params.ignore_eos,
        guided=params.guided is not None,
        priority=completion.request.priority,
        cache_salt=completion.request.cache_salt,
        lora=completion.request.lora,
        prompt_logprobs=params.prompt_logprobs is not None,
    )
