"""Greedy answers equal Transformers', for every architecture and RoPE variant, whatever the schedule."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.enginekit import assert_greedy, greedy, prompts_for, save_engine_checkpoint
from parity.tiny import ALL, TinyModel
from shoal import LLM

NEW = 12
OPTIONS: dict[str, Any] = {"threads": 1, "num_blocks": 400, "block_size": 4}


@pytest.mark.parametrize("tiny", ALL, ids=lambda tiny: tiny.name)
def test_greedy_answers_are_those_of_transformers(tiny: TinyModel, tmp_path: Path) -> None:
    model = save_engine_checkpoint(tiny, tmp_path)
    prompts = prompts_for(tiny, 6, NEW)
    with LLM(str(tmp_path), **OPTIONS, max_model_len=tiny.max_length) as llm:
        for prompt, answer in zip(prompts, greedy(llm, prompts, NEW), strict=True):
            assert_greedy(model, prompt, answer)
        llm.check()


_SCHEDULED = ("llama", "qwen3", "mistral-window", "gemma3", "deepseek-v3", "gpt-oss")
SCHEDULED = [tiny for tiny in ALL if tiny.name in _SCHEDULED]


@pytest.fixture(scope="module", params=SCHEDULED, ids=lambda tiny: tiny.name)
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    assert isinstance(request.param, TinyModel)
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(tiny.name)
    save_engine_checkpoint(tiny, directory)
    return directory


@pytest.fixture(scope="module")
def prompts(tiny: TinyModel) -> list[list[int]]:
    """32 of mixed length; some share long prefixes, some are equal."""
    whole = prompts_for(tiny, 16, NEW)
    shared = [whole[0][:30] + prompt[30 : 33 + i] for i, prompt in enumerate(whole[1:12])]
    return whole + shared + [whole[0][: 5 + i] for i in range(3)] + [list(whole[3]), list(whole[0])]


@pytest.fixture(scope="module")
def alone(checkpoint: Path, prompts: list[list[int]]) -> Iterator[list[tuple[int, ...]]]:
    """Every prompt by itself, whole, nothing cached."""
    with LLM(str(checkpoint), **OPTIONS, prefix_caching=False) as llm:
        yield [greedy(llm, [prompt], NEW)[0] for prompt in prompts]


@pytest.mark.parametrize("chunk", [1, 7, 64, None])
def test_chunks_do_not_change_the_answer(
    checkpoint: Path, prompts: list[list[int]], alone: list[tuple[int, ...]], chunk: int | None
) -> None:
    with LLM(str(checkpoint), **OPTIONS, prefill_chunk=chunk, prefix_caching=False) as llm:
        assert greedy(llm, prompts, NEW) == alone


def test_a_mixed_batch_answers_as_each_alone_and_again_from_the_cache(
    checkpoint: Path, prompts: list[list[int]], alone: list[tuple[int, ...]]
) -> None:
    with LLM(str(checkpoint), **OPTIONS) as llm:
        assert greedy(llm, prompts, NEW) == alone
        before = llm.stats().prefix_hit_tokens
        assert greedy(llm, prompts, NEW) == alone
        assert llm.stats().prefix_hit_tokens - before > sum(map(len, prompts)) // 2
        llm.check()


def test_preemption_does_not_change_the_answer(
    checkpoint: Path, prompts: list[list[int]], alone: list[tuple[int, ...]]
) -> None:
    options = {**OPTIONS, "num_blocks": 64}
    with LLM(str(checkpoint), **options, max_num_batched_tokens=96) as llm:
        assert greedy(llm, prompts, NEW) == alone
        assert llm.stats().preemptions > 0
        llm.check()


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_arrival_does_not_change_the_answer(
    checkpoint: Path, prompts: list[list[int]], alone: list[tuple[int, ...]], order: int
) -> None:
    shuffled = sorted(range(len(prompts)), key=lambda i: (i * 17 * order + 5) % 32)
    with LLM(str(checkpoint), **OPTIONS, max_num_seqs=5, max_num_batched_tokens=50) as llm:
        answers = greedy(llm, [prompts[i] for i in shuffled], NEW)
    assert answers == [alone[i] for i in shuffled]
