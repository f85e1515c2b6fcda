"""Grouped-query self-attention over paged keys and values."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.layers.linear import Linear
from shoal.engine.layers.loading import Target
from shoal.engine.layers.norm import RmsNorm
from shoal.specs.model import AttentionSpec, NormSpec

Rotation = tuple[Tensor, Tensor]
"""cos and sin of a step's rows."""


class Attention(nn.Module):
    """x [T, H] -> [T, H]. q, k and v come from one product."""

    def __init__(
        self, spec: AttentionSpec, norm: NormSpec, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.interleaved = spec.rope is not None and spec.rope.interleaved
        self.parts = {
            "q_proj": spec.heads * spec.head_dim,
            "k_proj": spec.kv_heads * spec.head_dim,
            "v_proj": spec.kv_heads * spec.v_head_dim,
        }
        self.qkv = Linear(hidden, sum(self.parts.values()), spec.qkv_bias, dtype, device)
        self.out = Linear(spec.heads * spec.v_head_dim, hidden, spec.out_bias, dtype, device)
        self.q_norm = RmsNorm(spec.head_dim, norm, dtype, device) if spec.qk_norm else None
        self.k_norm = RmsNorm(spec.head_dim, norm, dtype, device) if spec.qk_norm else None

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch, kv: LayerKv) -> Tensor:
        spec = self.spec
        rows = x.shape[0]
        qk, v = self.qkv(x).split((self.parts["q_proj"] + self.parts["k_proj"], self.parts["v_proj"]), -1)
        qk = qk.view(rows, spec.heads + spec.kv_heads, spec.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : spec.heads]), self.k_norm(qk[:, spec.heads :])), 1)
        if rotation is not None:
            qk = ops.rope(qk, *rotation, self.interleaved)
        q, k = qk.split((spec.heads, spec.kv_heads), 1)
        ops.write_kv(kv, k, v.view(rows, spec.kv_heads, spec.v_head_dim), batch.slots)
        attended = ops.paged_attention(q, kv, batch, spec.scale, spec.window, spec.softcap)
        return self.out(attended.view(rows, -1))  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target]:
        found = self.qkv.targets(self.parts) | self.out.targets({"o_proj": self.out.weight.shape[0]})
        if self.q_norm is not None and self.k_norm is not None:
            found |= self.q_norm.targets("q_norm") | self.k_norm.targets("k_norm")
        return found
