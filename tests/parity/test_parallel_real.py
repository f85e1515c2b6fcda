"""Real weights over several ranks: SmolLM2, whose 9 query and 3 KV heads divide by neither two ranks nor four."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.enginekit import assert_greedy, greedy
from parity.hf import from_gguf
from shoal import LLM, SamplingParams
from shoal.engine.sampling.params import GuidedParams

pytestmark = [pytest.mark.realmodel, pytest.mark.timeout(900)]
PROMPTS = ("The capital of France is", "Once upon a time, in a small harbour town,", "def fibonacci(n):\n")
NEW = 8
MEMORY: dict[str, Any] = {"kv_memory": 48 << 20, "max_model_len": 256, "threads": 1}
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def check(request: pytest.FixtureRequest) -> Callable[[Path, LLM], None]:
    """Transformers would have chosen every token."""
    models: dict[Path, Any] = {}

    def against_transformers(path: Path, llm: LLM) -> None:
        if path not in models:
            models[path] = from_gguf(path)
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        for prompt, answer in zip(prompts, greedy(llm, prompts, NEW), strict=True):
            assert len(answer) == NEW
            assert_greedy(models[path], prompt, answer)
        llm.check()

    return against_transformers


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2},
        {"pp": 2},
        pytest.param({"tp": 3}, marks=SLOW),
        pytest.param({"pp": 3}, marks=SLOW),
        pytest.param({"cp": 2}, marks=SLOW),
        pytest.param({"dp": 2}, marks=SLOW),
        pytest.param({"tp": 2, "pp": 2}, marks=SLOW),
    ],
    ids=lambda layout: "".join(f"{axis}{degree}" for axis, degree in layout.items()),
)
def test_smollm2(smollm2_path: Path, layout: dict[str, int], check: Callable[[Path, LLM], None]) -> None:
    with LLM(str(smollm2_path), **MEMORY, **layout) as llm:
        check(smollm2_path, llm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [{"tp": 2}, {"pp": 2}, {"cp": 2}, {"tp": 2, "pp": 2}],
    ids=lambda layout: "".join(f"{axis}{degree}" for axis, degree in layout.items()),
)
def test_gemma3(gemma3_path: Path, layout: dict[str, int], check: Callable[[Path, LLM], None]) -> None:
    """One KV head for all, windows, tied embeddings on two stages."""
    with LLM(str(gemma3_path), **MEMORY, **layout) as llm:
        check(gemma3_path, llm)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}], ids=["tp2", "pp2"])
def test_bug_19_a_grammar_does_not_hang_the_pipeline(smollm2_path: Path, layout: dict[str, int]) -> None:
    """Grammars live on the rank that samples; one that cannot go on ends alone, and so does an abort beside it."""
    choices = GuidedParams("choice", '["Paris is lovely", "London is rainy"]')
    guided = SamplingParams(temperature=0, max_tokens=16, guided=choices)
    plain = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    with LLM(str(smollm2_path), **MEMORY, **layout) as llm:
        alone = greedy(llm, [llm.tokenizer.encode(PROMPTS[1])], NEW)[0]
        first, second, third = llm.generate(
            [PROMPTS[0], PROMPTS[1], PROMPTS[0]], [guided, plain, guided], use_tqdm=False
        )
        assert first.outputs[0].text in ("Paris is lovely", "London is rainy")
        assert third.outputs[0] == first.outputs[0]
        assert second.outputs[0].token_ids == alone
        llm.check()


@pytest.mark.slow
def test_a_context_that_one_rank_cannot_hold_is_served_by_two(smollm2_path: Path) -> None:
    """Each rank has 24 blocks of 8 tokens, 184 in all without the null block; two of them serve 300."""
    text = " ".join(["A shoal of fish moves as one because every fish watches its neighbours."] * 17)
    with LLM(str(smollm2_path), num_blocks=200, block_size=8, threads=1) as llm:
        prompt = llm.tokenizer.encode(text)[:300]
        (alone,) = greedy(llm, [prompt], NEW)
    with LLM(str(smollm2_path), num_blocks=24, block_size=8, threads=1) as llm:
        assert llm.max_model_len < len(prompt)
    with LLM(str(smollm2_path), num_blocks=24, block_size=8, threads=1, cp=2) as llm:
        assert greedy(llm, [prompt], NEW) == [alone]
