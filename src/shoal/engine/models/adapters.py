"""From an adapter's files to updates of a model's products: this rank's part of each A and B.

Tensors are named `base_model.model.` + the module's name + `.lora_A.weight` or `.lora_B.weight`
(https://huggingface.co/docs/peft/developer_guides/checkpoint).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.engine.errors import WeightsError
from shoal.engine.layers.attention import Attention
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.layers.loading import Span
from shoal.engine.layers.mlp import GatedMlp
from shoal.engine.lora.config import WEIGHTS_FILE, AdapterConfig, AdapterError, read_config
from shoal.engine.lora.update import LowRankUpdates, stacked
from shoal.engine.models.decoder import CausalLM, DecoderLayer
from shoal.engine.models.names import canonical
from shoal.engine.options import LoraModule
from shoal.engine.weights.checkpoint import SafetensorsSource

_TENSOR = re.compile(r"^(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight$")
_LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class _Site:
    """One of the checkpoint's matrices in a product of this rank."""

    product: Linear | RowLinear
    start: int
    """First of its outputs in the product."""
    outputs: Span
    inputs: Span


@dataclass(slots=True)
class _Pair:
    """What the file has of one module."""

    module: str
    """PEFT's name of it."""
    a: str | None = None
    b: str | None = None


@torch.inference_mode()
def install_adapters(model: CausalLM, adapters: Sequence[LoraModule]) -> None:
    """Read the adapters' parts of this rank; they are numbered from 1, in order.

    Raises AdapterError for an adapter that cannot be used, or not with this model.
    """
    if not adapters:
        return
    sites = dict(_sites(model))
    for product in {id(site.product): site.product for site in sites.values()}.values():
        product.lora = LowRankUpdates(model.adapter_rows)
    for number, adapter in enumerate(adapters, 1):
        _Reader(model, sites, adapter, number).install()
    model.adapter_numbers = {adapter.name: number for number, adapter in enumerate(adapters, 1)}


class _Reader:
    """One adapter on its way into a model."""

    def __init__(self, model: CausalLM, sites: Mapping[str, _Site], adapter: LoraModule, number: int) -> None:
        self._model, self._sites, self._number, self._name = model, sites, number, adapter.name
        directory = Path(adapter.path).expanduser()
        self._config: AdapterConfig = read_config(adapter.name, directory)
        self._file = directory / WEIGHTS_FILE
        if not self._file.is_file():
            raise self._error(f"no {WEIGHTS_FILE}; the older adapter_model.bin is a pickle and is not read")
        try:
            self._source = SafetensorsSource({self._file: None})
        except WeightsError as error:
            raise AdapterError(adapter.name, str(error)) from error

    def _error(self, message: str) -> AdapterError:
        return AdapterError(self._name, message, self._file)

    def install(self) -> None:
        products: dict[int, tuple[Linear | RowLinear, list[tuple[int, Tensor, Tensor]]]] = {}
        for name, pair in self._pairs().items():
            site = self._sites.get(name)
            if site is None:
                self._check_elsewhere(name, pair.module)
                continue
            _, parts = products.setdefault(id(site.product), (site.product, []))
            parts.append((site.start, *self._read(pair, site)))
        for product, parts in products.values():
            assert product.lora is not None
            product.lora.install(self._number, stacked(parts))

    def _pairs(self) -> dict[str, _Pair]:
        """A and B by the module's canonical name."""
        found: dict[str, _Pair] = {}
        for tensor in self._source.names():
            match = _TENSOR.match(tensor)
            bare = canonical(match[1]) if match else None
            if match is None or bare is None:
                raise self._error(
                    f"tensor {tensor!r} is not an A or B of LoRA; embeddings and whole modules are not replaced"
                )
            pair = found.setdefault(bare, _Pair(match[1]))
            if (pair.a if match[2] == "A" else pair.b) is not None or pair.module != match[1]:
                raise self._error(f"{match[1]} is given twice")
            if match[2] == "A":
                pair.a = tensor
            else:
                pair.b = tensor
        if not found:
            raise self._error("it holds no tensors")
        return found

    def _check_elsewhere(self, name: str, module: str) -> None:
        """Accept a module of a layer that another rank has."""
        match, layers = _LAYER.match(name), len(self._model.spec.layers)
        if match is not None and int(match[1]) < layers and int(match[1]) not in self._model.stage:
            return
        kinds = sorted({site.rpartition(".")[2] for site in self._sites})
        raise self._error(
            f"it updates {module}, which this engine doesn't adapt in {self._model.spec.architecture} of {layers} "
            f"layers; it adapts {', '.join(kinds) or 'nothing'}"
        )

    def _read(self, pair: _Pair, site: _Site) -> tuple[Tensor, Tensor]:
        """This rank's A, and its B times the scale, in the compute dtype."""
        if pair.a is None or pair.b is None:
            raise self._error(f"{pair.module} has no lora_{'A' if pair.a is None else 'B'}.weight")
        rank = self._config.rank(pair.module)
        for tensor, expected in ((pair.a, (rank, site.inputs.whole)), (pair.b, (site.outputs.whole, rank))):
            if self._source.shape(tensor) != expected:
                raise self._error(
                    f"tensor {tensor} has shape {self._source.shape(tensor)}, expected {expected} by the rank "
                    "in adapter_config.json and the base model"
                )
        down = self._source.read(pair.a, (range(rank), site.inputs.own))
        up = self._source.read(pair.b, (site.outputs.own,))
        if not (down.dtype.is_floating_point and up.dtype.is_floating_point):
            raise self._error(f"{pair.module} has numbers of {down.dtype} and {up.dtype}, expected floating point")
        place = next(iter(self._model.parameters())).device
        scaled = up.to(torch.float32) * self._config.scale(pair.module)
        return tuple(t.to(place, self._model.dtype).contiguous() for t in (down, scaled))  # type: ignore[return-value]


def _sites(model: CausalLM) -> Iterator[tuple[str, _Site]]:
    """Canonical names of the modules that can be updated -> where they are on this rank."""
    for index, layer in zip(model.stage, model.layers, strict=True):
        assert isinstance(layer, DecoderLayer)
        attention, mlp, hidden = layer.attention, layer.mlp, Span.all(model.spec.hidden)
        if isinstance(attention, Attention):
            yield from _stacked_sites(f"layers.{index}.self_attn", attention.qkv, attention.parts, hidden)
            yield f"layers.{index}.self_attn.o_proj", _Site(attention.out, 0, hidden, attention.out.inputs)
        if isinstance(mlp, GatedMlp):
            parts = {"gate_proj": mlp.inner, "up_proj": mlp.inner}
            yield from _stacked_sites(f"layers.{index}.mlp", mlp.gate_up, parts, hidden)
            yield f"layers.{index}.mlp.down_proj", _Site(mlp.down, 0, hidden, mlp.down.inputs)


def _stacked_sites(
    prefix: str, product: Linear, parts: Mapping[str, Span], inputs: Span
) -> Iterator[tuple[str, _Site]]:
    start = 0
    for name, outputs in parts.items():
        yield f"{prefix}.{name}", _Site(product, start, outputs, inputs)
        start += len(outputs)
