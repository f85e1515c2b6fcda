"""Checkpoints as published -> tensors with the names, shapes and numbers that models are built from.

    experts.gate_up_proj          [E, H, 2·I]         a matrix an expert: experts.3.gate_proj.weight [I, H]
    experts.gate_up_proj_blocks   [E, 2·I, H/32, 16]  the same, MXFP4 (gpt-oss; gate and up rows alternate)
    q_proj.weight, q_proj.weight_scale_inv            a matrix: float8 in blocks of 128 × 128 (DeepSeek-V3)
    whole numbers: see `integers`

Nothing is converted before it is asked for, and of a stack only the expert, rows and columns that are.
"""

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.engine.errors import WeightsError
from shoal.engine.weights.integers import integer_recipes
from shoal.engine.weights.mxfp4 import GROUP, dequantize_mxfp4
from shoal.engine.weights.source import Ranges, Recipe, WeightSource

FP8_BLOCK = 128
"""Rows and columns that share a scale (DeepSeek-V3's README_WEIGHTS)."""
_SCALE = "_scale_inv"
_STACK = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks|_scales)?$")


def as_published(source: WeightSource, gptq_zero: int = 1) -> WeightSource:
    """`source` itself if its tensors are plain; else a source of plain ones made from them.

    `gptq_zero`: see `integer_recipes`.
    Raises WeightsError for a tensor whose other half (scales, blocks) is missing or of another shape.
    """
    recipes = _recipes(source, gptq_zero)
    return PublishedSource(source, recipes) if recipes else source


class PublishedSource:
    """See `as_published`."""

    def __init__(self, source: WeightSource, recipes: dict[str, dict[str, Recipe]]) -> None:
        """`recipes`: by name in the source, what is made of it (nothing, of scales)."""
        self._source = source
        self._recipes: dict[str, Recipe] = {}
        self._names: list[str] = []
        for name in source.names():
            made = recipes.get(name)
            if made is None:
                self._names.append(name)
            else:
                self._recipes |= made
                self._names += made

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def names(self) -> Sequence[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        recipe = self._recipes.get(name)
        return self._source.shape(name) if recipe is None else recipe.shape

    def read(self, name: str, ranges: Ranges = ()) -> Tensor:
        """See `WeightSource.read`. Dequantized to float32."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.read(name, ranges)
        whole = tuple(range(extent) for extent in recipe.shape)
        return recipe.read((*ranges, *whole[len(ranges) :]))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name in self._names:
            yield name, self.read(name)


def _recipes(source: WeightSource, gptq_zero: int) -> dict[str, dict[str, Recipe]]:
    names = dict.fromkeys(source.names())
    made = integer_recipes(source, names, gptq_zero)
    for name in names:
        match = _STACK.match(name)
        if match is not None:
            prefix, part, kind = match.groups()
            made[name] = _unstacked(source, name, prefix, part, kind, names)
        elif name.endswith(_SCALE):
            weight = name.removesuffix(_SCALE)
            if weight not in names:
                raise WeightsError(f"scales of {weight}, which is missing", tensor=name)
            made[name] = {}
            made[weight] = {weight: _fp8(source, weight)}
    return made


def _unstacked(
    source: WeightSource, name: str, prefix: str, part: str, kind: str | None, names: dict[str, None]
) -> dict[str, Recipe]:
    """One tensor an expert and projection of a stack."""
    shape = source.shape(name)
    if kind in ("_blocks", "_scales"):
        stem = name.removesuffix(kind)
        if f"{stem}_blocks" not in names or f"{stem}_scales" not in names:
            raise WeightsError(f"{stem}_blocks and {stem}_scales belong together; one is missing", tensor=name)
        if kind == "_scales":
            return {}
    expected = {None: 3, "_bias": 2, "_blocks": 4}[kind]
    if len(shape) != expected:
        raise WeightsError(f"found shape {shape}, expected {expected} dimensions, experts first", tensor=name)
    suffix = "bias" if kind == "_bias" else "weight"
    projections = {"gate_proj": (0, 2), "up_proj": (1, 2)} if part == "gate_up_proj" else {"down_proj": (0, 1)}
    return {
        f"{prefix}.{expert}.{projection}.{suffix}": _of_stack(source, name, kind, shape, expert, first, step)
        for expert in range(shape[0])
        for projection, (first, step) in projections.items()
    }


def _of_stack(
    source: WeightSource, name: str, kind: str | None, shape: tuple[int, ...], expert: int, first: int, step: int
) -> Recipe:
    """Every `step`-th output of one expert, from `first` on."""
    one = range(expert, expert + 1)

    def outputs(own: range) -> range:
        return range(own.start * step, own.stop * step)

    def bias(ranges: Ranges) -> Tensor:
        return source.read(name, (one, outputs(ranges[0])))[0, first::step]

    def plain(ranges: Ranges) -> Tensor:
        return source.read(name, (one, ranges[1], outputs(ranges[0])))[0, :, first::step].t()

    def packed(ranges: Ranges) -> Tensor:
        rows, columns = outputs(ranges[0]), ranges[1]
        groups = range(columns.start // GROUP, -(-columns.stop // GROUP))
        blocks = source.read(name, (one, rows, groups))[0, first::step]
        scales = source.read(name.removesuffix("_blocks") + "_scales", (one, rows, groups))[0, first::step]
        try:
            values = dequantize_mxfp4(blocks, scales)
        except ValueError as error:
            raise WeightsError(str(error), tensor=name) from error
        skipped = columns.start - groups.start * GROUP
        return values[:, skipped : skipped + len(columns)]

    if kind == "_bias":
        return Recipe((shape[1] // step,), bias)
    if kind == "_blocks":
        return Recipe((shape[1] // step, shape[2] * GROUP), packed)
    return Recipe((shape[2] // step, shape[1]), plain)


def _fp8(source: WeightSource, name: str) -> Recipe:
    shape, scales = source.shape(name), source.shape(name + _SCALE)
    if len(shape) != 2 or scales != tuple(-(-extent // FP8_BLOCK) for extent in shape):
        raise WeightsError(
            f"shape {shape} with scales {scales}; expected one a block of {FP8_BLOCK} × {FP8_BLOCK}", tensor=name
        )

    def read(ranges: Ranges) -> Tensor:
        blocks = tuple(range(r.start // FP8_BLOCK, -(-r.stop // FP8_BLOCK)) for r in ranges)
        values = source.read(name, ranges).to(torch.float32)
        scale = source.read(name + _SCALE, blocks).float()
        for dimension, (own, block) in enumerate(zip(ranges, blocks, strict=True)):
            scale = scale.repeat_interleave(FP8_BLOCK, dimension)
            scale = scale.narrow(dimension, own.start - block.start * FP8_BLOCK, len(own))
        return values * scale

    return Recipe(shape, read)
