"""Checkpoints in the formats that they are published in: MXFP4 experts, float8 blocks, layers that nobody runs.

The reference is Transformers with the same numbers in float32: dequantizing is exact, so that logits must agree as
they do for plain weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from parity.direct import Direct, relative_error
from parity.meshkit import run_ranks
from parity.tiny import MIXTURES, VOCAB, TinyModel, save_tiny
from shoal.engine.models.build import UnsupportedModel, build_model
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.weights import WeightsError, open_weights
from shoal.engine.weights.published import FP8_BLOCK
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout

TOLERANCE = 1e-4
CPU = torch.device("cpu")
BY_NAME = {tiny.name: tiny for tiny in MIXTURES}
IDS = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def declare(directory: Path, **changes: Any) -> None:
    """Change config.json."""
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([IDS]), use_cache=False).logits[0]
    return found


def mxfp4(directory: Path) -> Any:
    """A gpt-oss checkpoint with MXFP4 experts; returns Transformers' model of it, in float32."""
    oss = BY_NAME["gpt-oss"]
    tiny = TinyModel("gpt-oss", oss.config_class, {**oss.changes, "hidden_size": 64, "intermediate_size": 96})
    model = tiny.model()
    save_tiny(model, directory)
    file = directory / "model.safetensors"
    generator = torch.Generator().manual_seed(1)
    weights: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(122, 125, (experts, outputs, inputs // 32), generator=generator).to(torch.uint8)
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
        plain = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        model.get_parameter(name).data.copy_(plain)
    save_file(weights, file, {"format": "pt"})
    declare(directory, quantization_config={"quant_method": "mxfp4"})
    return model


def float8(directory: Path) -> Any:
    """A DeepSeek-V3 checkpoint with float8 matrices and the layer for multi-token prediction."""
    model = BY_NAME["deepseek-v3"].model()
    save_tiny(model, directory)
    file = directory / "model.safetensors"
    weights: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(2)
    for name, tensor in load_file(file).items():
        weights[name] = plain[name] = tensor
        if name.endswith(("proj.weight", "proj_with_mqa.weight")):
            shape = tuple(-(-extent // FP8_BLOCK) for extent in tensor.shape)
            scale = 0.5 + torch.rand(shape, generator=generator)
            wide = scale.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
            wide = wide[: tensor.shape[0], : tensor.shape[1]]
            weights[name], weights[f"{name}_scale_inv"] = (tensor / wide).to(torch.float8_e4m3fn), scale
            plain[name] = weights[name].float() * wide
    last = len(model.model.layers)
    for name in [name for name in weights if f"layers.{last - 1}." in name]:
        weights[name.replace(f"layers.{last - 1}.", f"layers.{last}.")] = weights[name].clone()
    weights[f"model.layers.{last}.eh_proj.weight"] = torch.zeros(4, 4)
    save_file(weights, file, {"format": "pt"})
    plain_dir = directory / "plain"
    plain_dir.mkdir()
    save_file(plain, plain_dir / "model.safetensors", {"format": "pt"})
    (plain_dir / "config.json").write_text((directory / "config.json").read_text())
    reference = type(model).from_pretrained(plain_dir, attn_implementation="eager").float().eval()
    declare(
        directory,
        num_nextn_predict_layers=1,
        quantization_config={"quant_method": "fp8", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]},
    )
    return reference


@pytest.mark.parametrize("publish", [mxfp4, float8])
def test_published_formats_compute_what_their_numbers_say(tmp_path: Path, publish: Any) -> None:
    reference = publish(tmp_path)
    assert relative_error(Direct.open(tmp_path).run(IDS, 7), logits(reference)) < TOLERANCE


@pytest.mark.parametrize(("publish", "ep"), [(mxfp4, 2), (mxfp4, 4), (float8, 2)])
def test_a_rank_reads_its_own_experts_only(tmp_path: Path, publish: Any, ep: int) -> None:
    """Together the ranks read every expert once, and what is not an expert once each. Where gate and up rows of a
    stack alternate, they are read with each other: twice."""
    publish(tmp_path)
    spec = load_model_spec(tmp_path)

    def body(mesh: Mesh) -> int:
        source = open_weights(tmp_path)
        build_model(spec, torch.float32, CPU, mesh=mesh).load(source)
        return source.bytes_read

    read = run_ranks(Layout(dp=ep, ep=ep), body)
    used = {
        name: tensor.nbytes
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if f"layers.{len(spec.layers)}." not in name
    }
    experts = sum(size for name, size in used.items() if ".experts." in name)
    alternating = sum(size for name, size in used.items() if ".experts.gate_up_proj" in name)
    assert sum(read) == experts + alternating + ep * (sum(used.values()) - experts)


def test_an_unknown_expert_is_refused_by_name_on_every_rank(tmp_path: Path) -> None:
    save_tiny(BY_NAME["mixtral"].model(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.block_sparse_moe.experts.5.w1.weight"] = torch.zeros(80, 48)
    save_file(weights, file, {"format": "pt"})
    spec = load_model_spec(tmp_path)

    def body(mesh: Mesh) -> str:
        with pytest.raises(WeightsError) as error:
            build_model(spec, torch.float32, CPU, mesh=mesh).load(open_weights(tmp_path))
        return str(error.value)

    for message in run_ranks(Layout(dp=2, ep=2), body):
        assert "1 tensors are not of MixtralForCausalLM" in message
        assert "experts.5.w1.weight" in message


def test_a_missing_expert_is_named_by_the_rank_that_has_it(tmp_path: Path) -> None:
    save_tiny(BY_NAME["mixtral"].model(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.block_sparse_moe.experts.4.w2.weight"]
    save_file(weights, file, {"format": "pt"})
    spec = load_model_spec(tmp_path)

    def body(mesh: Mesh) -> str | None:
        try:
            build_model(spec, torch.float32, CPU, mesh=mesh).load(open_weights(tmp_path))
        except WeightsError as error:
            return str(error)
        return None

    first, second = run_ranks(Layout(dp=2, ep=2), body)
    assert first is None
    assert second is not None
    assert "layers.1.mlp.experts.4.down_proj.weight" in second


def test_other_formats_are_refused_with_those_that_are_read(tmp_path: Path) -> None:
    save_tiny(BY_NAME["mixtral"].model(), tmp_path)
    declare(tmp_path, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(UnsupportedModel, match=r"'nf4'; it reads .* dequantizes gguf, mxfp4, fp8_block"):
        build_model(load_model_spec(tmp_path), torch.float32, CPU)
