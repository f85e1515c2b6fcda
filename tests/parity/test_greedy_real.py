"""Real weights: our greedy answers are those Transformers gives in fp32, token for token.

The whole of it (50 prompts of 64 tokens a model, and every schedule) is `slow`; a part runs every time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.enginekit import assert_greedy, greedy
from parity.hf import from_gguf
from shoal import LLM

pytestmark = [pytest.mark.realmodel, pytest.mark.timeout(1500)]

OPENINGS = (
    "The capital of France is", "Once upon a time, in a small harbour town,", "def fibonacci(n):\n",
    "Water boils at",
    "The three laws of motion say that", "My favourite recipe needs two eggs and", "In 1969, humans first",
    "A shoal of fish moves as one because", "SELECT name FROM users WHERE", "To be, or not to be:",
)  # fmt: skip
TURNS = ("", " Explain it to a child.", "\n\nQuestion: why?\nAnswer:", " List five examples:\n1.", " 日本語では")


def texts(count: int) -> list[str]:
    """Prompts of different kind and length; every fifth shares its opening with others."""
    return [opening + turn for turn in TURNS for opening in OPENINGS][:count]


@pytest.fixture(scope="module", params=["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def real(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(f"{request.param}_path"))


@pytest.fixture(scope="module")
def llm(real: Path) -> Iterator[LLM]:
    with LLM(str(real), kv_memory=600 << 20, max_model_len=1024) as llm:
        yield llm
        llm.check()


@pytest.mark.parametrize(("count", "tokens"), [(6, 16), pytest.param(50, 64, marks=pytest.mark.slow)])
def test_greedy_answers_are_those_of_transformers(real: Path, llm: LLM, count: int, tokens: int) -> None:
    prompts = [llm.tokenizer.encode(text) for text in texts(count)]
    answers = greedy(llm, prompts, tokens)
    model = from_gguf(real)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == tokens
        assert_greedy(model, prompt, answer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk": 1},
        {"prefill_chunk": 7},
        {"prefill_chunk": 64},
        {"num_blocks": 60, "max_num_batched_tokens": 128},
        {"max_num_seqs": 1},
        {"prefix_caching": False, "max_num_seqs": 5},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()),
)
def test_no_schedule_changes_an_answer(real: Path, llm: LLM, options: dict[str, Any]) -> None:
    """A mixed batch of 32, and again with its prefixes cached, against other ways to compute the same."""
    prompts = [llm.tokenizer.encode(text) for text in texts(32)]
    expected = greedy(llm, prompts, 24)
    assert greedy(llm, prompts, 24) == expected
    memory = {} if "num_blocks" in options else {"kv_memory": 300 << 20}
    with LLM(str(real), max_model_len=512, **memory, **options) as other:
        assert greedy(other, prompts[::-1], 24)[::-1] == expected
        if "num_blocks" in options:
            assert other.stats().preemptions > 0
        other.check()
