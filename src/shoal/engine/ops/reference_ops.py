"""What an implementation of the ops provides: every op, in plain PyTorch on any device."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.engine.ops import cpu, reference, reference_attention, reference_experts, reference_quantized
from shoal.engine.ops.fused import ExpertsFfn, FusedLayers, FusedStage


class ReferenceOps:
    """The references. An implementation overrides what it has kernels for, and falls back to `super()`."""

    name = "reference"
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    rope = staticmethod(reference.rope)
    rope_write = staticmethod(reference.rope_write)
    write_kv = staticmethod(reference.write_kv)
    paged_attention = staticmethod(reference_attention.paged_attention)
    silu_mul = staticmethod(reference.silu_mul)
    gelu_mul = staticmethod(reference.gelu_mul)
    swiglu_oai = staticmethod(reference_experts.swiglu_oai)
    linear = staticmethod(reference.linear)
    grouped_linear = staticmethod(reference_experts.grouped_linear)
    quantized_linear = staticmethod(reference_quantized.quantized_linear)
    quantized_experts = staticmethod(reference_quantized.quantized_experts)
    quantized_rows = staticmethod(reference_quantized.quantized_rows)

    def fuse_layers(self, stage: FusedStage) -> FusedLayers | None:
        """Make one call of all layers; None: they run op by op."""
        return None

    def fuse_experts(self, ffn: ExpertsFfn, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        """Make one call of experts and the choice among them, x [T, H] -> [T, H]; None: they run op by op."""
        return None


class CpuOps(ReferenceOps):
    """Plain PyTorch, asked as is fastest on a CPU."""

    name = "cpu"
    linear = staticmethod(cpu.linear)
