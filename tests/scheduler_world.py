"""A world for the scheduler: ranks whose KV memory remembers what it was computed from, and an oracle without any.

The stand-in model is exact: the KV of a position is a digest of every token up to it (and of LoRA and salt), read
from the block table as a real model would read it, and the next token is a function of that digest. So a block
reused for the wrong prefix, a copy that came too late, or a second writer changes tokens; and every row that a step
may read is compared with what its sequence requires. Plans in flight are executed early or late, in any order: the
scheduler may not depend on when a write happens between submission and completion.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.policy.batching import (
    Output,
    Request,
    SampledSequence,
    ScheduledSequence,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

VOCAB = 13
Digest = int


def start_digest(request: Request) -> Digest:
    return zlib.crc32(repr((request.lora, request.cache_salt)).encode())


def next_digest(digest: Digest, token: int) -> Digest:
    return hash((digest, token))  # of integers: the same in every process


def choose(request: Request, digest: Digest, output_index: int) -> int:
    """The next token after a history; the sampler's part of min_tokens included."""
    masked: tuple[int, ...] = ()
    if output_index < request.min_tokens:
        masked = request.stop_token_ids + (() if request.ignore_eos else request.eos_token_ids)
    token = next_digest(digest, -1) % VOCAB
    while token in masked:
        token = (token + 1) % VOCAB
    return token


def oracle(request: Request, config: SchedulerConfig) -> tuple[list[int], str]:
    """Output tokens and finish reason of a request that runs alone, without blocks, chunks or cache."""
    digest = start_digest(request)
    for token in request.prompt:
        digest = next_digest(digest, token)
    length, output = len(request.prompt), []
    capacity = (config.num_blocks - 1) * config.block_size
    while True:
        token = choose(request, digest, len(output))
        output.append(token)
        digest = next_digest(digest, token)
        ends = token in request.stop_token_ids or (token in request.eos_token_ids and not request.ignore_eos)
        if ends and len(output) > request.min_tokens:
            return output, "stop"
        total = length + len(output)
        if len(output) == request.max_tokens or total == config.max_model_len or total > capacity:
            return output, "length"


@dataclass
class Ranks:
    """What executes plans: tables from the messages, digests in blocks."""

    config: SchedulerConfig
    tables: dict[int, list[int]] = field(default_factory=dict)
    memory: dict[tuple[int, int], Digest] = field(default_factory=dict)

    def tell(self, plan: StepPlan) -> None:
        """Messages arrive in order."""
        for sequence_id in plan.finished:
            del self.tables[sequence_id]  # KeyError: dropped twice, or never known
        for share in plan.sequences:
            if share.reset:
                self.tables[share.sequence_id] = []
            self.tables[share.sequence_id] += share.blocks
            end = share.start + len(share.tokens)
            assert end <= len(self.tables[share.sequence_id]) * self.config.block_size

    def slot(self, sequence_id: int, position: int) -> tuple[int, int]:
        size = self.config.block_size
        return self.tables[sequence_id][position // size], position % size

    def written_blocks(self, share: ScheduledSequence) -> list[int]:
        size = self.config.block_size
        last = share.start + len(share.tokens) - 1
        return self.tables[share.sequence_id][share.start // size : last // size + 1]

    def copy(self, plan: StepPlan) -> None:
        for source, target in plan.copies:
            for offset in range(self.config.block_size):
                if (source, offset) in self.memory:
                    self.memory[target, offset] = self.memory[source, offset]

    def run(self, request: Request, share: ScheduledSequence, history: Sequence[int]) -> SampledSequence:
        """Compute one sequence's rows. `history`: all its tokens, to check what it reads."""
        digest = start_digest(request)
        for position in range(share.start):
            digest = next_digest(digest, history[position])
            found = self.memory.get(self.slot(request.id, position))
            assert found == digest, f"request {request.id} reads wrong KV at {position}"
        known = len(share.tokens) - share.drafts
        assert share.tokens[:known] == tuple(history[share.start : share.start + known])
        if share.start:
            digest = self.memory[self.slot(request.id, share.start - 1)]
        digests = []
        for index, token in enumerate(share.tokens):
            digest = next_digest(digest, token)
            digests.append(digest)
            self.memory[self.slot(request.id, share.start + index)] = digest
        tokens: list[int] = []
        if share.sample:
            for index in range(known - 1, len(share.tokens)):
                output_index = share.start + index + 1 - len(request.prompt)
                tokens.append(choose(request, digests[index], output_index))
                if index + 1 < len(share.tokens) and share.tokens[index + 1] != tokens[-1]:
                    break
        entries = []
        if request.prompt_logprobs:
            for position in range(share.start + 1, min(share.start + known, len(request.prompt) - 1) + 1):
                entries.append(TokenLogprobs((request.prompt[position],), (-float(position),), 1))
        logprobs = tuple(TokenLogprobs((token,), (0.0,), 1) for token in tokens)
        return SampledSequence(request.id, tuple(tokens), logprobs, tuple(entries))


@dataclass
class Flight:
    plan: StepPlan
    histories: dict[int, tuple[int, ...]]
    result: StepResult | None = None


class World:
    """Scheduler, ranks and a clock; checks everything that can be checked after every event."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.ranks = Ranks(config)
        self.now = 0.0
        self.requests: dict[int, Request] = {}
        self.arrivals: dict[int, tuple[float, int]] = {}
        self.progressed: dict[int, float] = {}
        self.aged: dict[int, None] = {}
        self.outputs: dict[int, list[int]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        self.finished: dict[int, Output] = {}
        self.flights: list[Flight] = []
        self.plans: list[StepPlan] = []

    # Events

    def add(self, request: Request) -> None:
        self.scheduler.add(request, self.now)
        self.requests[request.id] = request
        self.arrivals[request.id] = (self.now, len(self.arrivals))
        self.progressed[request.id] = self.now
        self.outputs[request.id] = []
        self.prompt_logprobs[request.id] = []
        self.scheduler.check()

    def abort(self, request_id: int) -> None:
        output = self.scheduler.abort(request_id)
        assert (output is None) == (request_id in self.finished)
        if output is not None:
            assert output.finish_reason == "abort"
            assert output.tokens == ()
            self.finished[request_id] = output
        assert self.scheduler.abort(request_id) is None
        self.scheduler.check()

    def propose(self, request_id: int, right: int, wrong: int) -> bool:
        """Drafts of which the first `right` will be accepted."""
        request = self.requests[request_id]
        expected, _ = oracle(request, self.config)
        done = len(self.outputs[request_id])
        drafts = [*expected[done : done + right], *([VOCAB + 1] * wrong)]
        return self.scheduler.propose(request_id, tuple(drafts))

    def submit(self) -> StepPlan | None:
        waiting_before = [i for i in self.requests if i not in self.finished and i not in self._running()]
        plan = self.scheduler.schedule(self.now)
        self.scheduler.check()
        if plan is None:
            assert self.flights or not self.scheduler.has_work(), "nothing to do, but work is left: a deadlock"
            return None
        self._check_plan(plan)
        self.ranks.tell(plan)
        self._check_writers(plan)
        self._check_order(plan, waiting_before)
        histories = {
            share.sequence_id: (*self.requests[share.sequence_id].prompt, *self.outputs[share.sequence_id])
            for share in plan.sequences
        }
        self.flights.append(Flight(plan, histories))
        self.plans.append(plan)
        return plan

    def execute(self, flight: Flight) -> None:
        """The ranks compute a plan, once, at any time while it is in flight."""
        if flight.result is None:
            self.ranks.copy(flight.plan)
            sampled = tuple(
                self.ranks.run(self.requests[share.sequence_id], share, flight.histories[share.sequence_id])
                for share in flight.plan.sequences
            )
            flight.result = StepResult(flight.plan.step, sampled)

    def complete(self, index: int = 0) -> list[Output]:
        flight = self.flights[index]
        self.execute(flight)
        del self.flights[index]
        assert flight.result is not None
        outputs = self.scheduler.complete(flight.plan, flight.result, self.now)
        self.scheduler.check()
        for output in outputs:
            self._take(output)
        return outputs

    def step(self) -> list[Output]:
        """One whole step, or the oldest plan in flight if no other can be made."""
        self.now += 1.0
        return self.complete() if self.submit() is not None or self.flights else []

    def drain(self, limit: int = 20_000) -> None:
        """Run until nothing is left; then every block is back and every request has its one ending."""
        for _ in range(limit):
            if not self.scheduler.has_work():
                break
            self.step()
        assert not self.scheduler.has_work(), f"not done after {limit} steps"
        stats = self.scheduler.stats()
        assert stats.blocks_owned == 0
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
        assert sorted(self.finished) == sorted(self.requests)
        for request_id, request in self.requests.items():
            expected, reason = oracle(request, self.config)
            if self.finished[request_id].finish_reason != "abort":
                assert self.outputs[request_id] == expected
                assert self.finished[request_id].finish_reason == reason
                if request.prompt_logprobs:
                    delivered = [entry.token_ids[0] for entry in self.prompt_logprobs[request_id]]
                    assert delivered == list(request.prompt[1:])

    # Checks

    def _take(self, output: Output) -> None:
        request = self.requests[output.request_id]
        assert output.request_id not in self.finished, "an output after the last one"
        assert output.tokens or output.prompt_logprobs or output.finish_reason
        assert output.error is None, output.error
        assert len(output.logprobs) == len(output.tokens)
        tokens = self.outputs[output.request_id]
        tokens += output.tokens
        expected, _ = oracle(request, self.config)
        assert tokens == expected[: len(tokens)], "the output depends on the schedule"
        entries = self.prompt_logprobs[output.request_id]
        entries += output.prompt_logprobs
        assert [-entry.logprobs[0] for entry in entries] == [float(i + 1) for i in range(len(entries))]
        if output.tokens:
            self.progressed[output.request_id] = self.now
        if output.finish_reason is not None:
            self.finished[output.request_id] = output

    def _check_plan(self, plan: StepPlan) -> None:
        config = self.config
        assert 0 < plan.num_tokens <= config.token_budget
        assert len(self.flights) < config.max_plans_in_flight
        assert plan.micro_batch not in [flight.plan.micro_batch for flight in self.flights]
        flying = [share.sequence_id for flight in self.flights for share in flight.plan.sequences]
        ids = [share.sequence_id for share in plan.sequences]
        assert len(set(ids)) == len(ids)
        assert not set(ids) & set(flying), "a sequence is in two plans"
        assert not set(plan.finished) & {*ids, *flying}
        assert not set(ids) & set(self.finished)
        for share in plan.sequences:
            assert share.tokens, "a step without a row"
            rows = len(share.tokens) - share.drafts
            assert config.chunk_size is None or rows <= config.chunk_size
            known = len(self.requests[share.sequence_id].prompt) + len(self.outputs[share.sequence_id])
            assert share.sample == (share.start + rows == known)
            assert share.output == (tuple(self.outputs[share.sequence_id]) if share.reset else ())

    def _check_writers(self, plan: StepPlan) -> None:
        """No block that a plan in flight writes is in the table of anyone else, nor the source of a copy."""
        plans = [*(flight.plan for flight in self.flights), plan]
        shares = [share for each in plans for share in each.sequences]
        sources = {source for each in plans for source, _ in each.copies}
        for share in shares:
            written = set(self.ranks.written_blocks(share))
            assert 0 not in written
            assert not written & sources
            for other in shares:
                if other is not share:
                    assert not written & set(self.ranks.tables[other.sequence_id]), "two writers, or a dirty read"
        assert len(self._running()) <= self.config.max_sequences
        assert sorted(self._running()) == sorted(self.ranks.tables), "the ranks keep what they could drop"

    def _running(self) -> list[int]:
        flying = [share.sequence_id for flight in self.flights for share in flight.plan.sequences]
        return [i for i in self.ranks.tables if i not in self.finished or i in flying]

    def _check_order(self, plan: StepPlan, waiting_before: list[int]) -> None:
        """Nobody is admitted past one that waited too long, but those that did too and arrived before."""
        admitted = [share.sequence_id for share in plan.sequences if share.reset]
        for request_id in [*waiting_before, *admitted]:
            if self.now - self.progressed[request_id] > self.config.starvation_bound:
                self.aged[request_id] = None
        passed = [i for i in waiting_before if i in self.aged and i not in admitted]
        for request_id in admitted:
            for other in passed:
                assert request_id in self.aged, "an aged request was overtaken by one that is not"
                assert self.arrivals[request_id] < self.arrivals[other], "overtaken by a later arrival"
