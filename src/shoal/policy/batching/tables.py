"""Block tables: which blocks a sequence gets, shares, copies, and gives back.

Reuse has one mechanism, the prefix hash. Children of one prompt (`n` > 1) are ordinary requests: the first computes
the prompt, the others wait for its blocks (`awaited`) and then share them; the rest of a partly filled last block,
less than one block of tokens, is computed again by each. Only full blocks are ever shared, and a full block is
never written: the one case in which a row of a shared block is computed again, a prompt cached to its very last
token, copies that block first.
"""

from typing import Protocol

import msgspec

from shoal.policy.batching.blocks import BlockPool, IntegrityError
from shoal.policy.batching.config import SchedulerConfig
from shoal.policy.batching.prefix import Extras, PrefixHasher
from shoal.policy.batching.request import SequenceState, Tokens


class PrefixMatch(msgspec.Struct, frozen=True):
    """What the cache holds of a sequence."""

    blocks: tuple[int, ...]
    """To share, in table order."""
    copy_from: int | None
    """The block after them, to copy because its last row has to be computed again."""
    tokens: int
    """Tokens that need not be computed: never all of them, a step needs a row to sample from."""


class Hasher(Protocol):
    """Names full blocks by their content and all before it: `PrefixHasher`, or one for counted tokens."""

    def extend(self, hashes: list[bytes], tokens: Tokens, extras: Extras) -> None:
        """Append the names of the full blocks of `tokens` that `hashes` lacks."""
        ...


class BlockTables:
    """The block pool, seen by sequences."""

    def __init__(self, config: SchedulerConfig, hasher: Hasher | None = None) -> None:
        self.pool = BlockPool(config.num_blocks, config.block_size, record_events=config.record_events)
        self._hasher: Hasher = hasher or PrefixHasher(config.block_size)
        self._caching = config.prefix_caching
        self._pending: dict[bytes, int] = {}
        """Blocks being computed by plans in flight: hash → how many compute it."""

    def match(self, sequence: SequenceState) -> PrefixMatch:
        """The longest cached prefix of a waiting sequence. Sets `sequence.awaits` if more is under way."""
        size = self.pool.block_size
        sequence.awaits = None
        if not self._caching:
            return PrefixMatch((), None, 0)
        self._hasher.extend(sequence.hashes, sequence.tokens, sequence.extras)
        blocks: list[int] = []
        for block_hash in sequence.hashes[: sequence.reusable // size]:
            block = self.pool.lookup(block_hash)
            if block is None:
                sequence.awaits = block_hash if block_hash in self._pending else None
                break
            blocks.append(block)
        if len(blocks) * size < sequence.length:
            return PrefixMatch(tuple(blocks), None, len(blocks) * size)
        return PrefixMatch(tuple(blocks[:-1]), blocks[-1], sequence.length - 1)

    def awaited(self, sequence: SequenceState) -> bool:
        """Whether the block that the sequence was found to await is still being computed."""
        return sequence.awaits is not None and sequence.awaits in self._pending

    def admit(self, sequence: SequenceState, match: PrefixMatch, headroom: int) -> bool:
        """Give a waiting sequence blocks for all its known tokens, sharing those of `match`.

        False, and nothing changed, if that would leave fewer than `headroom` blocks available.
        """
        shared = (*match.blocks, match.copy_from) if match.copy_from is not None else match.blocks
        fresh = self._blocks_for(sequence.length) - len(match.blocks)
        revived = sum(self.pool.references(block) == 0 for block in shared)
        if fresh + revived + headroom > self.pool.available:
            return False
        self.pool.acquire(shared)
        sequence.blocks = [*match.blocks, *self.pool.allocate(fresh)]
        sequence.committed = len(match.blocks)
        sequence.computed = match.tokens
        return True

    def grow(self, sequence: SequenceState, length: int) -> bool:
        """Append blocks until `length` tokens fit. False, and nothing changed, if there are not enough."""
        missing = self._blocks_for(length) - len(sequence.blocks)
        if missing > self.pool.available:
            return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return True

    def begin(self, sequence: SequenceState) -> tuple[bytes, ...]:
        """Announce the blocks that fill up once the sequence is computed to `computed`; end with `settle`."""
        full = self._full(sequence)
        if not self._caching or full == sequence.committed:
            return ()
        self._hasher.extend(sequence.hashes, sequence.tokens, sequence.extras)
        pending = tuple(sequence.hashes[sequence.committed : full])
        for block_hash in pending:
            self._pending[block_hash] = self._pending.get(block_hash, 0) + 1
        return pending

    def settle(self, pending: tuple[bytes, ...]) -> None:
        """The plan that `begin` announced is over, or was never made."""
        for block_hash in pending:
            self._pending[block_hash] -= 1
            if not self._pending[block_hash]:
                del self._pending[block_hash]

    def commit(self, sequence: SequenceState) -> None:
        """The KV of all tokens up to `computed` is written: its full blocks can be reused from now on."""
        full = self._full(sequence)
        if full <= sequence.committed:
            return
        if self._caching:
            hashes, tokens = sequence.hashes, sequence.tokens
            self._hasher.extend(hashes, tokens, sequence.extras)
            self.pool.register_chain(sequence.blocks, hashes, tokens, sequence.committed, full, sequence.extras)
        sequence.committed = full

    def release(self, sequence: SequenceState) -> None:
        """Take every block from a sequence that no plan in flight writes for."""
        if sequence.in_flight:
            raise IntegrityError(f"request {sequence.id} would lose its blocks while a plan writes to them")
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.committed = sequence.sent_blocks = 0

    def check(self, sequences: list[SequenceState], held: list[int]) -> None:
        """References are exactly the tables' and the `held` blocks; whoever may write a block is its only owner."""
        self.pool.check()
        owners = [0] * (self.pool.total + 1)
        for block in held:
            owners[block] += 1
        for sequence in sequences:
            for block in sequence.blocks:
                owners[block] += 1
        for block, count in enumerate(owners):
            if count != self.pool.references(block):
                raise IntegrityError(
                    f"block {block} has {count} owners and {self.pool.references(block)} references"
                )
        for sequence in sequences:
            for block in sequence.blocks[sequence.committed :]:
                if owners[block] != 1:
                    raise IntegrityError(f"request {sequence.id} may write block {block}, which others own too")

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.pool.block_size)

    def _full(self, sequence: SequenceState) -> int:
        """Blocks full of tokens that are known (drafts are not) and computed."""
        return min(sequence.computed, sequence.length) // self.pool.block_size
