"""All layers in one call of the compiled kernels against the same layers op by op: the same bits."""

import json
from pathlib import Path

import pytest
import torch

from parity.meshkit import run_ranks
from parity.tiny import ALL, TinyModel
from shoal.engine import ops
from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import KvCache
from shoal.engine.layers.embedding import Embedding
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM
from shoal.engine.models.quantize import quantize_model
from shoal.engine.ops.quantized import QuantizedWeight, Scheme
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.placement import held
from shoal.engine.parallel.traffic import Volume
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout

pytestmark = pytest.mark.skipif(not ops.KERNELS.name.startswith("native"), reason="no compiled kernels here")

CPU = torch.device("cpu")
BLOCK = 4
NAMES = ("llama", "qwen2", "qwen3", "mistral-window", "gemma3", "gemma3-softcap", "rope-llama3", "rope-yarn")
EXPERTS = ("mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss")
TINY = [tiny for tiny in ALL if tiny.name in NAMES]
STEPS = (
    [SequenceRows([3, 5, 7, 9, 11, 2, 4], 0, [1, 2], 1), SequenceRows([8] * 21, 0, [3, 4, 5, 6, 7, 8], 1)],
    [SequenceRows([6], 7, [1, 2]), SequenceRows([9, 1, 4], 21, [3, 4, 5, 6, 7, 8], 3), SequenceRows([1], 0, [9])],
    [SequenceRows([6], 24, [3, 4, 5, 6, 7, 8, 10])],
)


def _model(tiny: TinyModel, folder: Path, dtype: torch.dtype, scheme: Scheme | None = None) -> CausalLM:
    (folder / "config.json").write_text(json.dumps(tiny.config().to_dict(), default=str))
    model = build_model(load_model_spec(folder), dtype, CPU, 256)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.dim() == 1))
    if scheme is not None:
        kinds = (Embedding, Linear, RowLinear)
        dense = [(module, module.weight) for module in model.modules() if isinstance(module, kinds)]
        quantize_model(model, scheme)
        for module, weight in dense:
            if isinstance(module.weight, QuantizedWeight):
                module.weight.set_rows(weight)
    return model


def _run(model: CausalLM, kv: KvCache, one_call: bool) -> list[torch.Tensor]:
    if not one_call:
        model._fused = (kv, None)
    outputs = [model(build_batch(shares, BLOCK, CPU), kv) for shares in STEPS]
    assert model._fused is not None
    assert (model._fused[1] is not None) == one_call
    return outputs


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=["auto", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_one_call_gives_the_same_bits(tiny: TinyModel, dtype, kv_dtype, scheme, tmp_path: Path) -> None:
    assert {tiny.name for tiny in TINY} == set(NAMES)
    model = _model(tiny, tmp_path, dtype, scheme)
    one, other = (KvCache(model.spec, 16, BLOCK, kv_dtype or dtype, CPU) for _ in range(2))
    for ours, expected in zip(_run(model, one, True), _run(model, other, False), strict=True):
        assert bool(expected.isfinite().all())
        assert torch.equal(ours, expected)
    for layer, same in zip(one.layers, other.layers, strict=True):
        for part, expected in zip(layer.parts, same.parts, strict=True):
            assert torch.equal(part, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", EXPERTS)
def test_layers_with_experts_run_in_one_call(name: str, dtype, tmp_path: Path) -> None:
    """Not to the bit: the weights of experts are a softmax, which has another last bit."""
    model = _model(next(tiny for tiny in ALL if tiny.name == name), tmp_path, dtype)
    one, other = (KvCache(model.spec, 16, BLOCK, dtype, CPU) for _ in range(2))
    share = 1e-5 if dtype == torch.float32 else 0.05
    for ours, expected in zip(_run(model, one, True), _run(model, other, False), strict=True):
        assert bool(expected.isfinite().all())
        torch.testing.assert_close(ours, expected, rtol=0, atol=share * float(expected.abs().max()))


def test_layers_of_latent_attention_run_op_by_op(tmp_path: Path) -> None:
    tiny = next(tiny for tiny in ALL if tiny.name == "deepseek-v3")
    model = _model(tiny, tmp_path, torch.float32)
    _run(model, KvCache(model.spec, 16, BLOCK, torch.float32, CPU), one_call=False)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_ranks_that_share_layers_give_the_same_bits(name: str, tp: int, tmp_path: Path) -> None:
    """Compiled code sums over the ranks by itself, in the same places and the same order."""
    tiny = next(tiny for tiny in ALL if tiny.name == name)
    (tmp_path / "config.json").write_text(json.dumps(tiny.config().to_dict(), default=str))
    spec = load_model_spec(tmp_path)

    def body(mesh: Mesh) -> tuple[list[torch.Tensor], list[torch.Tensor], tuple[Volume, ...], tuple[Volume, ...]]:
        model = build_model(spec, torch.float32, CPU, 256, mesh)
        generator = torch.Generator().manual_seed(mesh.rank)
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.dim() == 1))
        results: list[list[torch.Tensor]] = []
        counts: list[tuple[Volume, ...]] = []
        for one_call in (True, False):
            mesh.traffic.reset()
            results.append(_run(model, KvCache(held(spec, mesh), 16, BLOCK, torch.float32, CPU), one_call))
            counts.append(mesh.traffic.snapshot())
        return results[0], results[1], counts[0], counts[1]

    for ours, expected, counted, one_by_one in run_ranks(Layout(tp=tp), body):
        assert counted == one_by_one
        for mine, theirs in zip(ours, expected, strict=True):
            assert bool(theirs.isfinite().all())
            assert torch.equal(mine, theirs)
