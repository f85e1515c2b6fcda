"""Keys and values in eight bits: what they take, what they lose, and that the schedule still changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from parity.direct import Direct, relative_error
from parity.enginekit import greedy, prompts_for, save_engine_checkpoint
from parity.tiny import ALL, TinyModel
from shoal import LLM
from shoal.engine.errors import InvalidOption
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.specs import ModelSpec
from shoal.specs.parse import parse_config

CPU = torch.device("cpu")
NEW = 10
OPTIONS: dict[str, Any] = {"threads": 1, "num_blocks": 300, "block_size": 4, "kv_dtype": "int8"}
TINY = [tiny for tiny in ALL if tiny.name in ("llama", "gemma3")]


@pytest.fixture(scope="module", params=TINY, ids=lambda tiny: tiny.name)
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    assert isinstance(request.param, TinyModel)
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(tiny.name)
    save_engine_checkpoint(tiny, directory)
    return directory


def test_the_schedule_does_not_change_the_answer(tiny: TinyModel, checkpoint: Path) -> None:
    """A head's steps depend on nothing but the head, so chunks, neighbours and cached prefixes can't show."""
    prompts = prompts_for(tiny, 5, NEW)
    prompts += [prompts[0][:20] + prompts[1][20:], prompts[0][:7]]
    with LLM(str(checkpoint), **OPTIONS, prefix_caching=False) as llm:
        alone = [greedy(llm, [prompt], NEW)[0] for prompt in prompts]
    for options in ({"prefill_chunk": 3}, {"num_blocks": 60, "max_num_batched_tokens": 40}, {}):
        with LLM(str(checkpoint), **{**OPTIONS, **options}) as llm:
            assert greedy(llm, prompts, NEW) == alone
            assert greedy(llm, prompts, NEW) == alone
            llm.check()


def test_logits_are_near_those_of_a_whole_cache(tiny: TinyModel, checkpoint: Path) -> None:
    ids = prompts_for(tiny, 1, 0)[0]
    whole, eight = Direct.open(checkpoint), Direct.open(checkpoint)
    eight.kv = KvCache(eight.spec, 256, eight.kv.block_size, torch.int8, CPU)
    difference = relative_error(eight.run(ids, 7), whole.run(ids, 7))
    assert 0 < difference < 0.1


def _spec(width: int) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": width,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    return parse_config(config, "t")


@pytest.mark.parametrize(("width", "share"), [(64, 0.04), (128, 0.02)])
def test_what_is_allocated_is_little_more_than_the_numbers(width: int, share: float) -> None:
    spec = _spec(width)
    numbers = 2 * 2 * 2 * width  # layers, keys and values, heads
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        cache = KvCache(spec, 50, 16, dtype, CPU)
        assert cache.bytes == 50 * kv_block_bytes(spec, 16, dtype)
        ideal = 50 * 16 * numbers * dtype.itemsize
        assert ideal <= cache.bytes <= ideal * (1 + (share if dtype == torch.int8 else 0))


def test_latents_are_refused(tmp_path: Path) -> None:
    save_engine_checkpoint(next(tiny for tiny in ALL if tiny.name == "deepseek-v3"), tmp_path)
    with pytest.raises(InvalidOption, match="kv_dtype"):
        LLM(str(tmp_path), **OPTIONS)
