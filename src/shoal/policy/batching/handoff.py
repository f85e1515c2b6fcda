"""Blocks that cross from one replica to another.

    sequence ends ──keep──► held ──release──► cached          here, until the other replica has fetched them
    begin ──► being filled ──store──► cached under its hash   there; or `drop`: free again

Held blocks are owned: nobody evicts or writes them. Imported ones are only cached, as if they had been computed
here: a request that waits for memory never owns any, so that transfers can't starve whoever is first in line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.policy.batching.blocks import BlockPool
from shoal.policy.batching.prefix import Extras
from shoal.policy.batching.request import SequenceState


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """The full blocks of a prompt, in its order, and the hash of each."""

    sequence_id: int
    blocks: tuple[int, ...]
    hashes: tuple[bytes, ...]


class Handoffs:
    """What one replica's pool holds for others, and takes in from them."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._held: dict[int, HeldPrefix] = {}
        self._filling: dict[int, None] = {}

    def keep(self, sequence: SequenceState) -> None:
        """Hold the full prompt blocks of a sequence that is about to give back its own references."""
        full = min(sequence.committed, sequence.prompt_length // self._pool.block_size, len(sequence.hashes))
        if full:
            blocks = tuple(sequence.blocks[:full])
            self._pool.acquire(blocks)
            self._held[sequence.id] = HeldPrefix(sequence.id, blocks, tuple(sequence.hashes[:full]))

    @property
    def held(self) -> list[int]:
        """Ids of the sequences whose blocks are held."""
        return list(self._held)

    def get(self, sequence_id: int) -> HeldPrefix | None:
        return self._held.get(sequence_id)

    def release(self, sequence_id: int) -> bool:
        """Give the blocks back; False if they were before."""
        held = self._held.pop(sequence_id, None)
        if held is None:
            return False
        self._pool.release(held.blocks)
        return True

    @property
    def blocks(self) -> list[int]:
        """Every block owned here, once for each reference."""
        return [block for held in self._held.values() for block in held.blocks] + list(self._filling)

    def known(self, hashes: Sequence[bytes]) -> int:
        """How many leading ones are in the pool."""
        return next((i for i, h in enumerate(hashes) if self._pool.lookup(h) is None), len(hashes))

    def begin(self, count: int) -> list[int] | None:
        """Blocks to be filled; None if so many are not available."""
        if count > self._pool.available:
            return None
        blocks = self._pool.allocate(count)
        self._filling.update(dict.fromkeys(blocks))
        return blocks

    def store(
        self,
        blocks: Sequence[int],
        first: int,
        hashes: Sequence[bytes],
        tokens: Sequence[int],
        extras: Extras = (),
    ) -> None:
        """The blocks are filled: `hashes` and `tokens` are of the whole prompt, `first` is their place in it."""
        size = self._pool.block_size
        for index, block in enumerate(blocks, start=first):
            parent = hashes[index - 1] if index else None
            self._pool.register(block, hashes[index], parent, tokens, index * size, extras)
        self.drop(blocks)

    def drop(self, blocks: Sequence[int]) -> None:
        """Give blocks of `begin` back."""
        for block in blocks:
            del self._filling[block]
        self._pool.release(blocks)
