"""Ranks that each round only what they hold answer as one rank does."""

from pathlib import Path

import pytest

from parity.enginekit import greedy, prompts_for, save_engine_checkpoint
from parity.tiny import TinyModel
from shoal import LLM

# Slices of whole groups of 32: two ranks then have the very codes and scales that one has.
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = TinyModel("llama", "LlamaConfig", SIZES)
MIXTRAL = TinyModel("mixtral", "MixtralConfig", {**SIZES, "num_local_experts": 4, "sliding_window": None})


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize(("tiny", "axis"), [(LLAMA, "tp"), (LLAMA, "pp"), (MIXTRAL, "tp"), (MIXTRAL, "ep")])
def test_two_ranks_answer_as_one(tiny: TinyModel, axis: str, scheme: str, tmp_path: Path) -> None:
    save_engine_checkpoint(tiny, tmp_path)
    prompts = prompts_for(tiny, 5, 8)
    with LLM(str(tmp_path), quantize=scheme, threads=1, num_blocks=100) as one:
        expected = greedy(one, prompts, 8)
    with LLM(str(tmp_path), quantize=scheme, threads=1, num_blocks=100, **{axis: 2}) as two:
        assert greedy(two, prompts, 8) == expected
