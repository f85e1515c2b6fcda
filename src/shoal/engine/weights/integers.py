"""Checkpoints of whole numbers -> plain tensors, part by part.

    compressed-tensors  weight [out, in] int8 or float8, weight_scale [out, 1], [out] or [1]
                        weight_packed [out, in / 8] int32, weight_scale [out, in / group]: (code - 8) · scale
    GPTQ                qweight [in / 8, out] int32, qzeros [groups, out / 8], scales [groups, out], g_idx [in]:
                        (code - zero - 1) · scale; what is stored is the zero less one, but for `gptq_v2`
    AWQ                 qweight [in, out / 8] int32, qzeros [groups, out / 8], scales [groups, out]:
                        (code - zero) · scale, eight outputs of a number in the order 0 2 4 6 1 3 5 7

Eight codes of four bits lie in an int32, the first in its lowest bits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.engine.errors import WeightsError
from shoal.engine.weights.source import Ranges, Recipe, WeightSource

CODES = 8
"""Codes in a stored number."""
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the code of each output is: output 1 in the place of the fifth, …"""


def integer_recipes(
    source: WeightSource, names: Mapping[str, None], gptq_zero: int = 1
) -> dict[str, dict[str, Recipe]]:
    """By stored name, what is made of it: nothing, of scales and zeros.

    `gptq_zero`: what a GPTQ checkpoint's stored zeros lack.
    Raises WeightsError for a tensor whose other parts are missing or of another shape.
    """
    made: dict[str, dict[str, Recipe]] = {}
    for name in names:
        stem, _, part = name.rpartition(".")
        if part == "weight_scale" and f"{stem}.weight" in names:
            made[name] = {}
            made[f"{stem}.weight"] = {f"{stem}.weight": _scaled(source, stem)}
        elif part == "weight_packed":
            made |= {key: {} for key in _needed(names, name, stem, "weight_scale", optional=("weight_shape",))}
            made[name] = {f"{stem}.weight": _packed(source, stem)}
        elif part == "qweight":
            made |= {key: {} for key in _needed(names, name, stem, "qzeros", "scales", optional=("g_idx",))}
            made[name] = {f"{stem}.weight": _grouped(source, stem, f"{stem}.g_idx" in names, gptq_zero)}
    return made


def _needed(
    names: Mapping[str, None], name: str, stem: str, *parts: str, optional: tuple[str, ...] = ()
) -> list[str]:
    absent = [part for part in parts if f"{stem}.{part}" not in names]
    if absent:
        raise WeightsError(f"goes with {stem}.{absent[0]}, which is missing", tensor=name)
    return [f"{stem}.{part}" for part in (*parts, *optional) if f"{stem}.{part}" in names]


def _scaled(source: WeightSource, stem: str) -> Recipe:
    shape, scales = source.shape(f"{stem}.weight"), source.shape(f"{stem}.weight_scale")
    if len(shape) != 2 or scales not in ((), (1,), (shape[0],), (shape[0], 1)):
        raise WeightsError(f"scales {scales} of a matrix {shape}; expected one, or one an output", tensor=stem)
    by_output = scales[:1] == shape[:1]

    def read(ranges: Ranges) -> Tensor:
        scale = source.read(f"{stem}.weight_scale", ranges[:1] if by_output else ())
        return source.read(f"{stem}.weight", ranges).float() * scale.float().reshape(-1, 1)

    return Recipe(shape, read)


def _packed(source: WeightSource, stem: str) -> Recipe:
    shape, scales = source.shape(f"{stem}.weight_packed"), source.shape(f"{stem}.weight_scale")
    outputs, inputs = shape[0], shape[-1] * CODES
    if len(shape) != 2 or len(scales) != 2 or scales[0] != outputs or inputs % scales[1]:
        raise WeightsError(
            f"codes {shape} with scales {scales}; expected [out, in / 8], [out, groups]", tensor=stem
        )
    group = inputs // scales[1]

    def read(ranges: Ranges) -> Tensor:
        rows, columns = ranges
        codes = unpacked(source.read(f"{stem}.weight_packed", (rows, _numbers(columns))))
        codes = codes.narrow(1, columns.start % CODES, len(columns)) - CODES
        scale = source.read(f"{stem}.weight_scale", (rows,)).float()
        return codes * scale[:, torch.arange(columns.start, columns.stop) // group]

    return Recipe((outputs, inputs), read)


def _grouped(source: WeightSource, stem: str, listed: bool, gptq_zero: int) -> Recipe:
    """GPTQ or AWQ: which dimension eight codes are of tells."""
    shape, scales = source.shape(f"{stem}.qweight"), source.shape(f"{stem}.scales")
    zeros = source.shape(f"{stem}.qzeros")
    if len(shape) != 2 or len(scales) != 2 or zeros != (scales[0], scales[1] // CODES):
        raise WeightsError(f"codes {shape}, zeros {zeros} and scales {scales} do not go together", tensor=stem)
    outputs = scales[1]
    if shape[1] == outputs:
        inputs, along_inputs = shape[0] * CODES, True
    elif shape[1] * CODES == outputs:
        inputs, along_inputs = shape[0], False
    else:
        raise WeightsError(f"codes {shape} of {outputs} outputs; expected four bits, as GPTQ or AWQ", tensor=stem)
    if inputs % scales[0]:
        raise WeightsError(f"{inputs} inputs in {scales[0]} groups", tensor=stem)

    def read(ranges: Ranges) -> Tensor:
        rows, columns = ranges
        group = torch.arange(columns.start, columns.stop) // (inputs // scales[0])
        if listed:
            group = source.read(f"{stem}.g_idx", (columns,)).long()
        if along_inputs:
            codes = unpacked(source.read(f"{stem}.qweight", (_numbers(columns), rows)).t())
            codes = codes.narrow(1, columns.start % CODES, len(columns))
        else:
            codes = _awq(source.read(f"{stem}.qweight", (columns, _numbers(rows))), rows).t()
        stored = source.read(f"{stem}.qzeros", (range(scales[0]), _numbers(rows)))
        zero = _rows_of(unpacked(stored), rows) + gptq_zero if along_inputs else _awq(stored, rows)
        scale = source.read(f"{stem}.scales", (range(scales[0]), rows)).float()
        return (codes - zero[group].t()) * scale[group].t()

    return Recipe((outputs, inputs), read)


def unpacked(numbers: Tensor) -> Tensor:
    """int32 [..., n] -> codes [..., 8 · n] float32."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((numbers[..., None] >> shifts) & 15).flatten(-2).float()


def _awq(numbers: Tensor, rows: range) -> Tensor:
    codes = unpacked(numbers).view(*numbers.shape, CODES)[..., list(_AWQ_ORDER)].flatten(1)
    return _rows_of(codes, rows)


def _rows_of(codes: Tensor, rows: range) -> Tensor:
    return codes.narrow(1, rows.start % CODES, len(rows))


def _numbers(codes: range) -> range:
    """The stored numbers that hold these codes."""
    return range(codes.start // CODES, -(-codes.stop // CODES))
