"""One rank's paged memory for keys and values.

    layers[i].k  [N, B, K, D]      block n holds B tokens of one sequence, each K heads of D numbers
    layers[i].v  [N, B, K, Dv]     a token's slot is n * B + offset

In eight bits (`--kv-dtype int8`) a token's head is int8 numbers and a bfloat16 scale, in tensors of their own:

    layers[i].k_scales, .v_scales  [N, B, K]

Latent attention (MLA) caches one vector a token for all heads, (latent, rotated key), in k: K is 1 and Dv is 0.

The token is outside the head, so that writing a row is one contiguous copy and a block is one contiguous piece of
memory: what copy-on-write, offloading and hand-off to another replica move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.engine.errors import EngineError
from shoal.specs.model import AttentionSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class LayerKv:
    k: Tensor
    """[N, B, K, D]"""
    v: Tensor
    """[N, B, K, Dv]"""
    k_scales: Tensor | None = None
    """[N, B, K] bfloat16, what a step of an eight-bit k is worth; None: k is what it says."""
    v_scales: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, each [N, B, K, …]."""
        return tuple(part for part in (self.k, self.v, self.k_scales, self.v_scales) if part is not None)


SCALE_TYPE = torch.bfloat16


def kv_block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers: B · Σ K·(D + Dv) · bytes of a number, and of two scales in eight bits."""
    per_token = 0
    for layer in spec.layers:
        heads, width, v_width = kv_shape(layer.attention)
        scales = 2 * SCALE_TYPE.itemsize if dtype == torch.int8 else 0
        per_token += heads * ((width + v_width) * dtype.itemsize + scales)
    return per_token * block_size


def kv_shape(attention: AttentionSpec) -> tuple[int, int, int]:
    """Heads, width of a key and width of a value, as cached. Raises EngineError where the state is another."""
    if attention.kind == "gqa":
        return attention.kv_heads, attention.head_dim, attention.v_head_dim
    if attention.kind == "mla" and attention.mla is not None:
        return 1, attention.mla.kv_lora_rank + attention.mla.qk_rope_dim, 0
    raise EngineError(f"no cache for {attention.kind!r} attention; accepted: 'gqa' and 'mla'")


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
        for layer in spec.layers:
            heads, width, v_width = kv_shape(layer.attention)
            slots = (num_blocks, block_size, heads)
            k, v = _zeros((*slots, width), dtype, device), _zeros((*slots, v_width), dtype, device)
            if dtype != torch.int8:
                self.layers.append(LayerKv(k, v))
                continue
            if layer.attention.kind == "mla":
                raise EngineError("no eight-bit cache for latent attention; accepted: kv_dtype 'auto'")
            self.layers.append(LayerKv(k, v, _zeros(slots, SCALE_TYPE, device), _zeros(slots, SCALE_TYPE, device)))

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for layer in self.layers for part in layer.parts)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target) each: copy-on-write. Sources are read before targets are written."""
        if not pairs:
            return
        device = self.layers[0].k.device
        source, target = torch.tensor(pairs, dtype=torch.int64).to(device).unbind(1)
        for layer in self.layers:
            for part in layer.parts:
                part.index_copy_(0, target, part.index_select(0, source))

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks: for those of a sequence that met a non-finite number, before anyone else gets them."""
        if not blocks:
            return
        index = torch.tensor(blocks, dtype=torch.int64).to(self.layers[0].k.device)
        for layer in self.layers:
            for part in layer.parts:
                part.index_fill_(0, index, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost nothing until they are used: on a CPU the system hands out zero pages at first touch, where
    `torch.zeros` would write gigabytes before the first request."""
    words = {1: np.int8, 2: np.int16, 4: np.int32}
    if device.type != "cpu" or dtype.itemsize not in words:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, words[dtype.itemsize])).view(dtype)
