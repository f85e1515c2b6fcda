"""One rank's paged memory for keys and values.

    layers[i].k  [N, B, K, D]      block n holds B tokens of one sequence, each K heads of D numbers
    layers[i].v  [N, B, K, Dv]     a token's slot is n * B + offset

The token is outside the head, so that writing a row is one contiguous copy and a block is one contiguous piece of
memory: what copy-on-write, offloading and hand-off to another replica move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine.errors import EngineError
from shoal.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerKv:
    k: Tensor
    """[N, B, K, D]"""
    v: Tensor
    """[N, B, K, Dv]"""


def kv_block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers: B · Σ K·(D + Dv) · bytes of a number."""
    per_token = sum(
        layer.attention.kv_heads * (layer.attention.head_dim + layer.attention.v_head_dim) for layer in spec.layers
    )
    return per_token * block_size * dtype.itemsize


class KvCache:
    """Allocated once. Memory starts at zero: masked slots are still multiplied, and 0 · NaN is NaN."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises EngineError for a layer whose state isn't keys and values."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.layers: list[LayerKv] = []
        for index, layer in enumerate(spec.layers):
            attention = layer.attention
            if attention.kind != "gqa":
                raise EngineError(f"layer {index}: no cache for {attention.kind!r} attention; accepted: 'gqa'")
            head = (num_blocks, block_size, attention.kv_heads)
            self.layers.append(
                LayerKv(
                    torch.zeros(*head, attention.head_dim, dtype=dtype, device=device),
                    torch.zeros(*head, attention.v_head_dim, dtype=dtype, device=device),
                )
            )

    @property
    def bytes(self) -> int:
        return sum(layer.k.nbytes + layer.v.nbytes for layer in self.layers)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target) each: copy-on-write. Sources are read before targets are written."""
        if not pairs:
            return
        device = self.layers[0].k.device
        source, target = torch.tensor(pairs, dtype=torch.int64).to(device).unbind(1)
        for layer in self.layers:
            layer.k.index_copy_(0, target, layer.k.index_select(0, source))
            layer.v.index_copy_(0, target, layer.v.index_select(0, source))

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks: for those of a sequence that met a non-finite number, before anyone else gets them."""
        if not blocks:
            return
        index = torch.tensor(blocks, dtype=torch.int64).to(self.layers[0].k.device)
        for layer in self.layers:
            layer.k.index_fill_(0, index, 0)
            layer.v.index_fill_(0, index, 0)
