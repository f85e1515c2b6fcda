"""Bugs that engines had in their scheduler, block pool or prefix cache; one test or more each, by number."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scheduler_world import VOCAB, World
from shoal.policy.batching import (
    BlockPool,
    IntegrityError,
    PrefixHasher,
    Request,
    SampledSequence,
    Scheduler,
    SchedulerConfig,
    StepResult,
    block_hash,
    make_extras,
)
from shoal.policy.batching.prefix import SEED

PROMPT = tuple(i % VOCAB for i in range(16))


def config(**changes: object) -> SchedulerConfig:
    return SchedulerConfig(**{"num_blocks": 40, "block_size": 4, "max_model_len": 64, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", range(1, 17))
def test_bug_01_same_prompt_answers_alike_on_a_hit(cut: int) -> None:
    """vllm#7845. Every length of reuse: none, partial, all but the last token of a full block, with a copy."""
    world = World(config())
    world.add(Request(id=0, prompt=PROMPT, max_tokens=8))
    world.drain()
    world.add(Request(id=1, prompt=PROMPT[:cut], max_tokens=8))
    world.add(Request(id=2, prompt=PROMPT, max_tokens=8))
    world.drain()  # compares with the oracle
    assert world.outputs[2] == world.outputs[0]
    assert world.finished[2].cached_tokens == 15


@pytest.mark.parametrize("fields", [{"lora": "x"}, {"cache_salt": "x"}, {"lora": "x", "cache_salt": "x"}, {}])
@pytest.mark.parametrize("others", [{"lora": "x"}, {"cache_salt": "x"}, {"lora": "x", "cache_salt": "x"}, {}])
def test_bug_02_lora_name_does_not_pass_for_a_cache_salt(fields: dict[str, str], others: dict[str, str]) -> None:
    """vllm#44701."""
    world = World(config())
    world.add(Request(id=0, prompt=PROMPT, max_tokens=2, **fields))
    world.drain()
    world.add(Request(id=1, prompt=PROMPT, max_tokens=2, **others))
    world.drain()
    assert world.finished[1].cached_tokens == (15 if fields == others else 0)


def test_bug_03_hash_is_cryptographic_and_framed() -> None:
    """vllm#12621. Nothing predictable to aim at: 256 bits over an encoding with one reading."""
    assert len(block_hash(SEED, (1, 2))) == hashlib.sha256().digest_size == 32
    # The same bytes divided otherwise between tokens and extras, or between extras.
    assert block_hash(SEED, (1, 2, 3)) != block_hash(SEED, (1, 2), (("3", ""),))
    assert block_hash(SEED, (1,), (("ab", "c"),)) != block_hash(SEED, (1,), (("a", "bc"),))
    # Python's own hash has -1 and -2 collide, which made another engine's prefix hash collide.
    assert hash(-1) == hash(-2)
    assert block_hash(SEED, (-1,)) != block_hash(SEED, (-2,))


@pytest.mark.parametrize("width", [8, 16, 32])
def test_bug_04_token_ids_are_hashed_whole(width: int) -> None:
    """vllm-mlx#444."""
    scheduler = Scheduler(config())
    for request_id, shift in ((0, 0), (1, 1 << width)):
        prompt = tuple(token + shift for token in range(8))
        scheduler.add(Request(id=request_id, prompt=prompt, max_tokens=1), 0)
        plan = scheduler.schedule(0)
        assert plan is not None
        assert plan.sequences[0].start == 0
        scheduler.complete(plan, StepResult(plan.step, (SampledSequence(request_id, (5,)),)), 0)


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 16])
def test_bug_05_hash_granularity_is_the_block_size(block_size: int) -> None:
    """kvcached#446. The hasher and the pool can't be given different sizes, and a hit is whole blocks."""
    pool = BlockPool(8, block_size + 1)
    (block,) = pool.allocate(1)
    with pytest.raises(IntegrityError):
        pool.register(block, PrefixHasher(block_size).hashes(range(block_size))[0], None, range(block_size))
    world = World(config(block_size=block_size))
    world.add(Request(id=0, prompt=PROMPT, max_tokens=1))
    world.drain()
    world.add(Request(id=1, prompt=(*PROMPT[:11], 12, 12), max_tokens=1))
    world.drain()
    assert world.finished[1].cached_tokens == 11 // block_size * block_size


@pytest.mark.parametrize("length", [1, 4, 5, 8, 16])
def test_bug_06_full_hit_leaves_one_token(length: int) -> None:
    """nano-vllm#144."""
    world = World(config())
    for request_id in range(2):
        world.add(Request(id=request_id, prompt=PROMPT[:length], max_tokens=3))
        world.drain()
    second = next(s for plan in world.plans for s in plan.sequences if s.sequence_id == 1)
    assert len(second.tokens) >= 1
    assert second.sample
    if length % 4 == 0:
        assert (second.start, len(second.tokens)) == (length - 1, 1)


def test_bug_07_rows_are_counted_after_the_hit_also_when_resumed() -> None:
    """nano-vllm#211, #233. A resumed request computes what is not cached then, neither more nor less."""
    world = World(config(num_blocks=8, headroom=0.0, token_budget=64))
    world.add(Request(id=0, prompt=PROMPT[:9], max_tokens=12))
    world.add(Request(id=1, prompt=PROMPT[::-1][:9], max_tokens=12))
    world.drain()
    resumed = [(p, s) for p in world.plans for s in p.sequences if s.reset and s.output]
    assert resumed
    for plan, share in resumed:
        length = 9 + len(share.output)
        assert share.start > 0
        assert share.start + len(share.tokens) == length
        assert plan.num_tokens == sum(len(s.tokens) for s in plan.sequences) <= 64


@pytest.mark.parametrize("caching", [True, False])
def test_bug_08_preemption_does_not_double_outputs(caching: bool) -> None:
    """vllm-gaudi#524."""
    world = World(config(num_blocks=8, headroom=0.0, prefix_caching=caching))
    for request_id in range(3):
        world.add(Request(id=request_id, prompt=(request_id, *PROMPT[:5]), max_tokens=15))
    world.drain()
    assert world.scheduler.stats().preemptions > 0
    assert [len(world.outputs[i]) for i in range(3)] == [15, 15, 15]


def test_bug_09_preempted_and_resumed_do_not_chase_each_other() -> None:
    """vllm#25538. Twelve growing requests in a pool for three: the work done twice stays small."""
    world = World(config(num_blocks=37, max_model_len=200, prefix_caching=False))
    for request_id in range(12):
        world.add(Request(id=request_id, prompt=(request_id, *PROMPT[:7]), max_tokens=40))
    world.drain()
    stats = world.scheduler.stats()
    assert stats.preemptions > 0, "the pool is not tight enough to show anything"
    assert stats.preemptions <= 12 * 2
    assert stats.scheduled_tokens <= 1.5 * 12 * 48
    resumed = [i for i, plan in enumerate(world.plans) if any(s.reset and s.output for s in plan.sequences)]
    preempted = [i for i, plan in enumerate(world.plans) if set(plan.finished) - set(world.finished)]
    assert not set(resumed) & set(preempted)


@pytest.mark.parametrize("right", range(4))
@pytest.mark.parametrize("wrong", range(3))
def test_bug_10_rejected_drafts_are_given_back_exactly(right: int, wrong: int) -> None:
    """vllm#57562, #38624. No count goes below zero or is left over, whatever part of the drafts is right."""
    world = World(config(block_size=2, max_plans_in_flight=2))
    for request_id in range(2):
        world.add(Request(id=request_id, prompt=PROMPT[: 3 + request_id], max_tokens=17))
    for _ in range(200):
        for request_id in range(2):
            world.propose(request_id, right, wrong)
        world.step()
        for share in world.plans[-1].sequences:
            assert share.start >= 0
            assert share.start + len(share.tokens) - share.drafts <= 20
        if not world.scheduler.has_work():
            break
    world.drain()
    if right:
        assert len(world.plans) < 2 * 17


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 7])
def test_bug_11_prompt_logprobs_are_complete_despite_the_cache(chunk_size: int | None) -> None:
    """vllm#3251, #42245. Rows that were never delivered are computed although their KV is cached."""
    world = World(config(chunk_size=chunk_size))
    world.add(Request(id=0, prompt=PROMPT, max_tokens=2))
    world.drain()
    world.add(Request(id=1, prompt=PROMPT, max_tokens=2, prompt_logprobs=True))
    world.drain()
    assert world.finished[1].cached_tokens == 0
    assert [entry.token_ids[0] for entry in world.prompt_logprobs[1]] == list(PROMPT[1:])


def test_bug_11_prompt_logprobs_come_once_although_preempted() -> None:
    """Preempted while the prompt is half delivered, and again after it: no row twice, none missing."""
    world = World(config(num_blocks=12, chunk_size=3, headroom=0.0, max_model_len=60))
    world.add(Request(id=0, prompt=PROMPT[:4], max_tokens=36, priority=0))
    world.add(Request(id=1, prompt=PROMPT[::-1] + PROMPT, max_tokens=3, priority=1, prompt_logprobs=True))
    world.drain()
    assert world.finished[1].preemptions > 0
    assert len(world.prompt_logprobs[1]) == 31


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 15, 16])
def test_bug_12_chunks_yield_nothing_until_the_prompt_ends(chunk_size: int) -> None:
    """vllm#14239, #29216."""
    world = World(config(chunk_size=chunk_size))
    world.add(Request(id=0, prompt=PROMPT, max_tokens=2, prompt_logprobs=True))
    chunks = -(-16 // chunk_size)
    for index in range(chunks):
        outputs = world.step()
        sampled = [token for output in outputs for token in output.tokens]
        assert len(sampled) == (1 if index == chunks - 1 else 0)
        assert world.plans[-1].sequences[0].sample == (index == chunks - 1)
        assert len(world.prompt_logprobs[0]) == min(15, (index + 1) * chunk_size)
    world.drain()


def _ends(tokens: list[int], **fields: object) -> tuple[int, str | None, int | None]:
    """Feeds a sequence the given tokens: how many came out, why it ended, at which token."""
    scheduler = Scheduler(config())
    scheduler.add(Request(**{"id": 0, "prompt": (1, 2), "max_tokens": 8, **fields}), 0)  # type: ignore[arg-type]
    for count, token in enumerate(tokens, 1):
        plan = scheduler.schedule(0)
        assert plan is not None
        (output,) = scheduler.complete(plan, StepResult(plan.step, (SampledSequence(0, (token,)),)), 0)
        if output.finish_reason is not None:
            return count, output.finish_reason, output.stop_token
    return len(tokens), None, None


def test_bug_17_every_eos_id_ends_and_ignore_eos_ignores_every_one() -> None:
    """vllm#5849, #4589."""
    assert _ends([5, 3], eos_token_ids=(2, 3)) == (2, "stop", 3)
    assert _ends([5, 2], eos_token_ids=(2, 3)) == (2, "stop", 2)
    assert _ends([2, 3, 2], eos_token_ids=(2, 3), ignore_eos=True) == (3, None, None)
    # An id that the caller names as a stop token ends it, end-of-sequence or not.
    assert _ends([2, 3], eos_token_ids=(2, 3), ignore_eos=True, stop_token_ids=(3,)) == (2, "stop", 3)


def test_bug_17_min_tokens_covers_every_way_to_stop() -> None:
    fields = {"eos_token_ids": (2, 3), "stop_token_ids": (4,), "min_tokens": 3}
    assert _ends([2, 3, 4, 9], **fields) == (4, None, None)
    for token in (2, 3, 4):
        assert _ends([9, 9, 9, token], **fields) == (4, "stop", token)
        assert _ends([9, 9, token, 9], **fields) == (4, None, None)
    assert _ends([2, 2, 2], min_tokens=3, max_tokens=3, eos_token_ids=(2,)) == (3, "length", None)


def test_a_finished_grammar_ends_before_min_tokens() -> None:
    """vllm#53665: with `min_tokens` beyond the grammar's end the request failed; here it repeated EOS."""
    fields = {"eos_token_ids": (2, 3), "stop_token_ids": (4,), "min_tokens": 5, "guided": True}
    assert _ends([9, 4, 3], **fields) == (3, "stop", 3)
    assert _ends([9, 2, 9], **fields, ignore_eos=True) == (3, None, None)


@pytest.mark.parametrize("plans", [1, 2, 3])
def test_bug_21_no_block_is_lost_however_a_request_ends(plans: int) -> None:
    """vllm#46283. Abort at every moment of a request's life; twice; then everything is free and allocatable."""
    for moment in range(14):
        world = World(config(num_blocks=12, chunk_size=5, max_plans_in_flight=plans, headroom=0.0))
        for request_id in range(4):
            world.add(Request(id=request_id, prompt=PROMPT[: 13 + request_id % 2], max_tokens=6))
        for event in range(moment):
            if event % 2 == 0 or not world.flights:
                world.submit()
            else:
                world.complete()
        for request_id in range(4):
            world.abort(request_id)
            world.abort(request_id)
        while world.flights:
            assert world.complete() == []
        assert not world.scheduler.has_work()
        stats = world.scheduler.stats()
        assert stats.blocks_owned == 0
        assert stats.blocks_free + stats.blocks_cached == 11
        world.scheduler._tables.pool.allocate(11)
        world.scheduler._tables.pool.check()


def test_bug_21_double_free_is_noticed() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.release(blocks)
    with pytest.raises(IntegrityError, match="no owner"):
        pool.release(blocks)


def plans_digest() -> str:
    """A digest of all plans of a busy schedule, to compare between processes."""
    rng = random.Random(22)
    world = World(config(num_blocks=30, max_plans_in_flight=2, token_budget=16, headroom=0.0))
    for request_id in range(30):
        prompt = PROMPT[: rng.randint(1, 16)] + tuple(rng.randrange(VOCAB) for _ in range(rng.randint(0, 4)))
        salt, lora = rng.choice([None, "a"]), rng.choice([None, "b"])
        world.add(Request(id=request_id, prompt=prompt, max_tokens=20, cache_salt=salt, lora=lora))
        world.submit()
        if rng.random() < 0.2:
            world.abort(rng.randrange(request_id + 1))
        if world.flights:
            world.complete(rng.randrange(len(world.flights)))
    world.drain()
    assert world.scheduler.stats().preemptions > 0
    return hashlib.sha256(b"".join(msgspec.msgpack.encode(plan) for plan in world.plans)).hexdigest()


def test_bug_22_same_calls_make_byte_identical_plans() -> None:
    """mini-sglang#113, sglang#33442. In processes with different string hashing, too."""
    digests = [plans_digest()]
    folder = Path(__file__).parent
    code = "from test_engine_bugs_policy import plans_digest; print(plans_digest())"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder}{os.pathsep}{folder.parent}"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        digests.append(done.stdout.strip())
    assert len(set(digests)) == 1


def test_bug_22_extras_order_is_fixed() -> None:
    assert make_extras("l", "s") == (("lora", "l"), ("cache_salt", "s"))
