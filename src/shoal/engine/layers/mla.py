"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): one vector a token is cached.

The key of head h at a token is (U_h · c, r), its value W_h · c, with the latent c [C] and the rotated r [R] common
to all heads. Since q · (U_h · c) = (U_hᵀ · q) · c, a query can be brought to the latents instead of the latents to
every head, and what attention reads is the cache as it is: one head whose key is (c, r) and whose value is c.

    q [Q, N]  ── U_hᵀ ──► [Q, C] ┐                                       ┌► [Q, C] ── W_h ──► [Q, V]
    q [Q, R]  ── rope ──► [Q, R] ┴► attention to the cached (c, r) ──────┘
"""

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.layers.attention import Rotation
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.layers.loading import Span, Target, empty
from shoal.engine.layers.norm import RmsNorm
from shoal.engine.layers.striped import attend
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import split
from shoal.specs.model import AttentionSpec, NormSpec


class LatentAttention(nn.Module):
    """x [T, H] -> [T, H]. A tensor-parallel rank holds some of the heads and all latents."""

    def __init__(
        self,
        spec: AttentionSpec,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        mesh: Mesh | None = None,
    ) -> None:
        super().__init__()
        if spec.mla is None:
            raise ValueError("latent attention without its sizes")
        mesh = mesh or Mesh.single()
        self.spec, self.mla, self.cp = spec, spec.mla, mesh.cp
        mla = self.mla
        own = split(spec.heads, mesh.tp.size)[mesh.tp.index]
        self.heads = len(own)
        self.interleaved = spec.rope is not None and spec.rope.interleaved
        self.q_parts = Span.of(spec.heads, own, spec.head_dim)
        norm = NormSpec(mla.norm_eps)
        self.q_down: Linear | None = None
        self.q_norm: RmsNorm | None = None
        if mla.q_lora_rank is not None:
            self.q_down = Linear(hidden, mla.q_lora_rank, spec.qkv_bias, dtype, device)
            self.q_norm = RmsNorm(mla.q_lora_rank, norm, dtype, device)
        self.q_up = Linear(mla.q_lora_rank or hidden, len(self.q_parts), False, dtype, device)
        self.latent = Linear(hidden, mla.kv_lora_rank + mla.qk_rope_dim, spec.qkv_bias, dtype, device)
        self.latent_norm = RmsNorm(mla.kv_lora_rank, norm, dtype, device)
        self.up_parts = Span.of(spec.heads, own, mla.qk_nope_dim + mla.v_dim)
        self.up = empty((len(self.up_parts), mla.kv_lora_rank), dtype, device)
        self.out = RowLinear(Span.of(spec.heads, own, mla.v_dim), hidden, spec.out_bias, dtype, device, mesh.tp)

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch, kv: LayerKv) -> Tensor:
        mla, rows = self.mla, x.shape[0]
        if self.q_down is not None and self.q_norm is not None:
            q = self.q_up(self.q_norm(self.q_down(x)))
        else:
            q = self.q_up(x)
        q_plain, q_turned = q.view(rows, self.heads, self.spec.head_dim).split(
            (mla.qk_nope_dim, mla.qk_rope_dim), -1
        )
        latent, k_turned = self.latent(x).split((mla.kv_lora_rank, mla.qk_rope_dim), -1)
        latent, k_turned = self.latent_norm(latent)[:, None], k_turned[:, None]
        if rotation is not None:
            q_turned = ops.rope(q_turned, *rotation, self.interleaved)
            k_turned = ops.rope(k_turned, *rotation, self.interleaved)
        cached = torch.cat((latent, k_turned), -1)
        ops.write_kv(kv, cached, cached[..., :0], batch.slots)
        up_k, up_v = torch.split(self.up.view(self.heads, -1, mla.kv_lora_rank), [mla.qk_nope_dim, mla.v_dim], 1)
        q = torch.cat((torch.einsum("thn,hnc->thc", q_plain, up_k), q_turned), -1)
        attended = torch.einsum("thc,hvc->thv", self._attend(q, batch, kv), up_v)
        return self.out(attended.reshape(rows, self.heads * mla.v_dim))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, batch: Batch, kv: LayerKv) -> Tensor:
        """q [T, heads, C + R] -> [T, heads, C]."""
        one_head = LayerKv(kv.k, kv.k[..., : self.mla.kv_lora_rank])
        return attend(q, one_head, batch, self.cp, self.spec)

    def targets(self) -> dict[str, Target]:
        found = self.out.targets("o_proj") | self.latent_norm.targets("kv_a_layernorm")
        found |= self.latent.targets({"kv_a_proj_with_mqa": self.latent.outputs})
        found["kv_b_proj.weight"] = Target(self.up, spans=(self.up_parts,))
        if self.q_down is None or self.q_norm is None:
            return found | self.q_up.targets({"q_proj": self.q_parts})
        found |= self.q_down.targets({"q_a_proj": self.q_down.outputs}) | self.q_norm.targets("q_a_layernorm")
        return found | self.q_up.targets({"q_b_proj": self.q_parts})
