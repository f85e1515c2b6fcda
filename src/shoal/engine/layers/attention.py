"""Grouped-query self-attention over paged keys and values."""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.layers.loading import Span, Target, empty
from shoal.engine.layers.norm import RmsNorm
from shoal.engine.layers.striped import attend
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.placement import own_heads
from shoal.specs.model import AttentionSpec, NormSpec

Rotation = tuple[Tensor, Tensor]
"""cos and sin of a step's rows."""


class Attention(nn.Module):
    """x [T, H] -> [T, H]. q, k and v come from one product.

    A tensor-parallel rank holds some of the heads, in whole KV groups or with their KV head replicated; the outputs
    are summed over ranks. Context-parallel ranks hold some of the rows and of the keys (`layers.striped`).
    """

    def __init__(
        self,
        spec: AttentionSpec,
        norm: NormSpec,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        mesh: Mesh | None = None,
    ) -> None:
        super().__init__()
        mesh = mesh or Mesh.single()
        own = own_heads(spec, mesh)
        self.spec = spec
        self.cp = mesh.cp
        self.heads, self.kv_heads = len(own.q), len(own.kv)
        self.interleaved = spec.rope is not None and spec.rope.interleaved
        self.parts = {
            "q_proj": Span.of(spec.heads, own.q, spec.head_dim),
            "k_proj": Span.of(spec.kv_heads, own.kv, spec.head_dim),
            "v_proj": Span.of(spec.kv_heads, own.kv, spec.v_head_dim),
        }
        self.widths = (len(self.parts["q_proj"]) + len(self.parts["k_proj"]), len(self.parts["v_proj"]))
        self.qkv = Linear(hidden, sum(self.widths), spec.qkv_bias, dtype, device)
        inputs = Span.of(spec.heads, own.q, spec.v_head_dim)
        self.out = RowLinear(inputs, hidden, spec.out_bias, dtype, device, mesh.tp)
        self.q_norm = RmsNorm(spec.head_dim, norm, dtype, device) if spec.qk_norm else None
        self.k_norm = RmsNorm(spec.head_dim, norm, dtype, device) if spec.qk_norm else None
        self.own_heads = Span(spec.heads, own.q)
        self.sinks = empty((self.heads,), dtype, device) if spec.sinks else None

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch, kv: LayerKv) -> Tensor:
        spec = self.spec
        rows = x.shape[0]
        qk, v = self.qkv(x).split(self.widths, -1)
        q, k = qk.view(rows, self.heads + self.kv_heads, spec.head_dim).split((self.heads, self.kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        v = v.view(rows, self.kv_heads, spec.v_head_dim)
        q = ops.rope_write(q, k, v, rotation, self.interleaved, kv, batch.slots)
        attended = attend(q, kv, batch, self.cp, spec, self.sinks)
        return self.out(attended.view(rows, self.heads * spec.v_head_dim))  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target]:
        found = self.qkv.targets(self.parts) | self.out.targets("o_proj")
        if self.q_norm is not None and self.k_norm is not None:
            found |= self.q_norm.targets("q_norm") | self.k_norm.targets("k_norm")
        if self.sinks is not None:
            found["sinks"] = Target(self.sinks, spans=(self.own_heads,))
        return found
