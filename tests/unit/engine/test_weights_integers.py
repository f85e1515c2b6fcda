"""Published checkpoints of whole numbers, written here as their formats have it, read whole and in parts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from shoal.engine.weights import WeightsError, open_weights

OUT, IN, GROUP = 24, 64, 16
NAME = "model.layers.0.mlp.up_proj"
RNG = torch.Generator().manual_seed(5)
Made = tuple[dict[str, Tensor], Tensor]
"""Stored tensors, and what they stand for."""


def packed(codes: Tensor) -> Tensor:
    """Eight codes of the last dimension an int32, the first lowest."""
    whole = codes.long().unflatten(-1, (-1, 8))
    number = (whole << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(number >= 2**31, number - 2**32, number).to(torch.int32)


def drawn(*shape: int, most: int = 16) -> Tensor:
    return torch.randint(0, most, shape, generator=RNG)


def scales(*shape: int) -> Tensor:
    return (torch.rand(shape, generator=RNG) + 0.5).half()


def w8a8() -> Made:
    codes, scale = drawn(OUT, IN, most=255) - 127, scales(OUT, 1)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, codes * scale.float()


def w8_one_scale() -> Made:
    codes, scale = drawn(OUT, IN, most=255) - 127, scales(1)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, codes * scale.float()


def pack_quantized() -> Made:
    codes, scale = drawn(OUT, IN), scales(OUT, IN // GROUP)
    stored = {"weight_packed": packed(codes), "weight_scale": scale, "weight_shape": torch.tensor([OUT, IN])}
    return stored, (codes - 8) * scale.float().repeat_interleave(GROUP, 1)


def gptq(order: Tensor | None = None) -> Made:
    codes, zeros, scale = drawn(IN, OUT), drawn(IN // GROUP, OUT, most=15), scales(IN // GROUP, OUT)
    group = torch.arange(IN) // GROUP if order is None else order
    stored = {"qweight": packed(codes.t()).t(), "qzeros": packed(zeros), "scales": scale}
    if order is not None:
        stored["g_idx"] = order.to(torch.int32)
    return stored, ((codes - zeros[group] - 1) * scale.float()[group]).t()


def gptq_act_order() -> Made:
    return gptq((torch.arange(IN) // GROUP)[torch.randperm(IN, generator=RNG)])


def awq() -> Made:
    codes, zeros, scale = drawn(IN, OUT), drawn(IN // GROUP, OUT), scales(IN // GROUP, OUT)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def interleaved(x: Tensor) -> Tensor:
        return packed(x.unflatten(1, (-1, 8))[..., order].flatten(1))

    group = torch.arange(IN) // GROUP
    stored = {"qweight": interleaved(codes), "qzeros": interleaved(zeros), "scales": scale}
    return stored, ((codes - zeros[group]) * scale.float()[group]).t()


FORMATS: tuple[Callable[[], Made], ...] = (w8a8, w8_one_scale, pack_quantized, gptq, gptq_act_order, awq)


@pytest.mark.parametrize("made", FORMATS, ids=lambda made: made.__name__)
def test_what_is_stored_is_what_is_read(made: Callable[[], Made], tmp_path: Path) -> None:
    stored, expected = made()
    norm = torch.ones(IN)
    tensors = {f"{NAME}.{part}": tensor.contiguous() for part, tensor in stored.items()}
    save_file({**tensors, "model.norm.weight": norm}, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    assert sorted(source.names()) == [f"{NAME}.weight", "model.norm.weight"]
    assert source.shape(f"{NAME}.weight") == (OUT, IN)
    torch.testing.assert_close(source.read(f"{NAME}.weight"), expected, rtol=0, atol=0)
    for rows in (range(8), range(3, 13), range(23, 24)):
        for columns in (range(16), range(5, 47), range(63, 64)):
            part = source.read(f"{NAME}.weight", (rows, columns))
            expected_part = expected[rows.start : rows.stop, columns.start : columns.stop]
            torch.testing.assert_close(part, expected_part, rtol=0, atol=0)
    torch.testing.assert_close(source.read(f"{NAME}.weight", (range(2, 9),)), expected[2:9], rtol=0, atol=0)


@pytest.mark.parametrize("place", ["config.json", "quantize_config.json"])
def test_zeros_of_the_second_gptq_format_are_whole(place: str, tmp_path: Path) -> None:
    stored, first = gptq()
    save_file({f"{NAME}.{p}": t.contiguous() for p, t in stored.items()}, tmp_path / "model.safetensors")
    said = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    said = {"quantization_config": said} if place == "config.json" else said
    (tmp_path / place).write_text(json.dumps(said))
    scale = stored["scales"].float()[torch.arange(IN) // GROUP].t()
    torch.testing.assert_close(open_weights(tmp_path).read(f"{NAME}.weight"), first + scale)


@pytest.mark.parametrize("part", ["qzeros", "scales"])
def test_a_missing_half_is_named(part: str, tmp_path: Path) -> None:
    stored, _ = gptq()
    del stored[part]
    save_file({f"{NAME}.{p}": t.contiguous() for p, t in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"{part}, which is missing"):
        open_weights(tmp_path)


def test_parts_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    stored, _ = awq()
    stored["scales"] = stored["scales"][:, :16]
    save_file({f"{NAME}.{p}": t.contiguous() for p, t in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="do not go together"):
        open_weights(tmp_path)
