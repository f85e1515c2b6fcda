"""KV memory as bytes by blocks: what one replica sends and another takes in.

n blocks = for each layer: k of the n blocks, v of the n blocks (and scales, where there are any)
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.engine.kv.cache import KvCache
from shoal.specs.model import ModelSpec


class KvBlocks:
    """One rank's."""

    def __init__(self, kv: KvCache, spec: ModelSpec, numerics: str) -> None:
        """`numerics`: whatever else of the options the content of a block depends on."""
        self._parts: list[Tensor] = [part for layer in kv.layers for part in layer.parts if part.numel()]
        self.block_bytes = sum(part[0].nbytes for part in self._parts)
        shapes = [(tuple(part.shape[1:]), str(part.dtype)) for part in self._parts]
        # The spec's text: a hash that it keeps of itself differs between processes.
        self.layout = hashlib.sha256(f"{spec!r} {numerics} {shapes}".encode()).digest()
        """Digest of what must be equal for blocks to mean the same on two replicas."""

    def read(self, blocks: Sequence[int]) -> bytes:
        """The content of `blocks`. Safe in any thread while nobody writes them."""
        return b"".join(self._bytes(part, blocks) for part in self._parts)

    def _bytes(self, part: Tensor, blocks: Sequence[int]) -> bytes:
        index = torch.tensor(blocks, dtype=torch.int64, device=part.device)
        return part.index_select(0, index).cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def write(self, blocks: Sequence[int], data: bytes) -> None:
        """Replace the content of `blocks`. Raises ValueError for data of another length."""
        if len(data) != len(blocks) * self.block_bytes:
            raise ValueError(f"{len(data)} bytes for {len(blocks)} blocks of {self.block_bytes}")
        raw = np.frombuffer(bytearray(data), np.uint8)
        start = 0
        for part in self._parts:
            index = torch.tensor(blocks, dtype=torch.int64, device=part.device)
            size = len(blocks) * part[0].nbytes
            content = torch.from_numpy(raw[start : start + size]).view(part.dtype)
            part.index_copy_(0, index, content.view(len(blocks), *part.shape[1:]).to(part.device))
            start += size
