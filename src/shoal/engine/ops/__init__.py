"""The operations a model is made of, each with a plain-torch reference and a place for kernels.

The environment variable SHOAL_KERNELS picks an implementation by name when the process starts; else the best that
runs here is used.
"""

import os
from typing import Final

from shoal.engine.ops.kernels import REFERENCE, select_kernels

KERNELS: Final = select_kernels(os.environ.get("SHOAL_KERNELS"))

rms_norm = KERNELS.rms_norm
rope = KERNELS.rope
silu_mul = KERNELS.silu_mul
gelu_mul = KERNELS.gelu_mul
linear = KERNELS.linear
write_kv = KERNELS.write_kv
paged_attention = KERNELS.paged_attention
grouped_linear = KERNELS.grouped_linear
swiglu_oai = KERNELS.swiglu_oai
quantized_linear = KERNELS.quantized_linear
quantized_experts = KERNELS.quantized_experts
quantized_rows = KERNELS.quantized_rows
add_rms_norm = KERNELS.add_rms_norm
rope_write = KERNELS.rope_write

__all__ = [
    "KERNELS",
    "REFERENCE",
    "add_rms_norm",
    "gelu_mul",
    "grouped_linear",
    "linear",
    "paged_attention",
    "quantized_experts",
    "quantized_linear",
    "quantized_rows",
    "rms_norm",
    "rope",
    "rope_write",
    "select_kernels",
    "silu_mul",
    "swiglu_oai",
    "write_kv",
]
