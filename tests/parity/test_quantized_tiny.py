"""Whole models with weights of eight and four bits: kernels beside plain torch, and beside full precision."""

from pathlib import Path

import pytest
import torch

from parity.direct import BLOCK_SIZE, CPU, Direct
from parity.enginekit import greedy, prompts_for, save_engine_checkpoint
from parity.tiny import ALL, VOCAB, TinyModel, save_tiny
from shoal import LLM
from shoal.engine import ops
from shoal.engine.errors import InvalidOption
from shoal.engine.kv.cache import KvCache
from shoal.engine.layers.attention import Attention
from shoal.engine.layers.mlp import GatedMlp
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM, DecoderLayer
from shoal.engine.models.quantize import quantize_model
from shoal.engine.ops.kernels import REFERENCE
from shoal.engine.ops.quantized import QuantizedWeight, Scheme
from shoal.engine.weights import open_weights
from shoal.specs import load_model_spec

SCHEMES: tuple[Scheme, ...] = ("int8", "int4")
NAMES = ("llama-bias", "llama-tied", "gemma3", "qwen2-moe", "deepseek-v3")
TINY = {tiny.name: tiny for tiny in ALL}
FAR: dict[Scheme, float] = {"int8": 0.12, "int4": 0.7}
"""Random weights of 48 inputs are the hardest there are: nothing averages out."""


def moved(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Mean distance as a share of the mean magnitude. Not the largest: a row may go to another expert."""
    return float((ours - reference).abs().mean() / reference.abs().mean())


def opened(path: Path, scheme: Scheme | None) -> Direct:
    spec = load_model_spec(path)
    model: CausalLM = build_model(spec, torch.float32, CPU)
    if scheme is not None:
        quantize_model(model, scheme)
    model.load(open_weights(path))
    return Direct(spec, model, KvCache(spec, 64, BLOCK_SIZE, torch.float32, CPU), list(range(1, 64)))


@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_plain_torch_give_the_same_logits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = TINY[name]
    path = save_tiny(tiny.model(), tmp_path)
    ids = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    exact = opened(path, None).run(ids, chunk=13)
    for scheme in SCHEMES:
        model = opened(path, scheme)
        found = model.run(ids, chunk=13)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "KERNELS", REFERENCE)
            patch.setattr(ops, "quantized_linear", REFERENCE.quantized_linear)
            patch.setattr(ops, "quantized_experts", REFERENCE.quantized_experts)
            plain = opened(path, scheme).run(ids, chunk=13)
        # A number at the border of two steps may be rounded either way, and is then off by a whole step.
        assert moved(found, plain) < 0.02
        assert moved(found, exact) < FAR[scheme]


def test_what_is_held_in_fewer_bits(tmp_path: Path) -> None:
    path = save_tiny(TINY["llama-tied"].model(), tmp_path)
    model = opened(path, "int4").model
    assert model.embedding is not None
    assert model.head is not None
    shared = model.embedding.weight
    assert isinstance(shared, QuantizedWeight)
    assert shared.scheme == "int8"
    assert model.head.weight is shared, "a tied head has no memory of its own"
    layer = model.layers[0]
    assert isinstance(layer, DecoderLayer)
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, GatedMlp)
    for part in (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down):
        assert isinstance(part.weight, QuantizedWeight)
        assert part.weight.scheme == "int4"
    assert not any(isinstance(p, torch.nn.Parameter) and p.dim() == 2 for p in model.parameters())


def test_the_engine_serves_it(tmp_path: Path) -> None:
    """Alone and in a batch, in one go and cut by a small budget: the same tokens."""
    tiny: TinyModel = TINY["llama-tied"]
    save_engine_checkpoint(tiny, tmp_path)
    prompts = prompts_for(tiny, 4, 8)
    answers = []
    for budget in (512, 16):
        with LLM(str(tmp_path), quantize="int8", threads=1, num_blocks=200, max_num_batched_tokens=budget) as llm:
            answers.append(greedy(llm, prompts, 8))
            answers.append([greedy(llm, [prompt], 8)[0] for prompt in prompts])
    assert all(answer == answers[0] for answer in answers[1:])


def test_unknown_schemes_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="int8, int4"):
        LLM(str(tmp_path), quantize="int3")
    with pytest.raises(InvalidOption, match="cpu"):
        LLM(str(tmp_path), quantize="int8", device="cuda")
