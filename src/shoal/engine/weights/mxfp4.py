"""MXFP4, the OCP microscaling format (OCP MX specification 1.0, section 5.3): 32 values share an exponent.

A value is one of sixteen 4-bit floats (sign, 2 exponent bits, 1 mantissa bit), times 2^(scale - 127). Checkpoints
pack two into a byte, the first in the low half: blocks [..., groups, 16] and scales [..., groups], both uint8.
"""

import torch
from torch import Tensor

GROUP = 32
"""Values that share a scale."""
_BIAS = 127
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks [..., G, 16] and scales [..., G] -> [..., G · 32] float32. Exact: no rounding is involved.

    Raises ValueError for other shapes or dtypes.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"MXFP4 blocks of {blocks.dtype} and scales of {scales.dtype}; both should be uint8")
    if blocks.shape[-1:] != (GROUP // 2,) or blocks.shape[:-1] != scales.shape:
        raise ValueError(f"MXFP4 blocks {tuple(blocks.shape)} do not go with scales {tuple(scales.shape)}")
    values = torch.tensor((*_MAGNITUDES, *(-m for m in _MAGNITUDES)), device=blocks.device)
    pairs = torch.stack((blocks & 0xF, blocks >> 4), -1).flatten(-2).int()
    exponents = scales.int() - _BIAS
    return torch.ldexp(values[pairs], exponents[..., None]).flatten(-2)
