"""The block pool: who holds which block of KV memory, and which free ones still hold something worth keeping.

    free list    0 (sentinel) ⇄ 7 ⇄ 3 ⇄ 12 ⇄ 5 ⇄ 9 ⇄ (back to 0)
                                front: taken first   back: taken last
                                nothing to keep      cached, least recently used first

A block is *owned* (references > 0), or on the free list; a free block with a hash is *cached*: a later sequence
with the same prefix can take it off the middle of the list. Blocks are released last first, so that the end of a
chain is evicted before its beginning. Block 0 is the null block: never handed out, it pads tables and is the list's
sentinel.
"""

from collections.abc import Iterable, Sequence

from shoal.policy.batching.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from shoal.policy.batching.prefix import Extras, Sliceable

NULL_BLOCK = 0


class IntegrityError(RuntimeError):
    """The books of the scheduler do not balance: a bug of Shoal, never of a caller's input."""


class BlockPool:
    """Blocks 1 … num_blocks-1, all of `block_size` tokens. Only the checks cost more than O(blocks touched)."""

    def __init__(self, num_blocks: int, block_size: int, *, record_events: bool = False) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; at least 2 are needed (block 0 is the null block)")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; at least 1 is needed")
        self.block_size = block_size
        self.total = num_blocks - 1
        self._next = [*range(1, num_blocks), 0]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._free = self.total
        self._cached = 0
        self._record_events = record_events
        self._events: list[KvEvent] = []

    @property
    def available(self) -> int:
        """Blocks that can be allocated: free ones, those with a cached prefix among them."""
        return self._free

    @property
    def cached(self) -> int:
        """Free blocks that hold a reusable prefix."""
        return self._cached

    @property
    def owned(self) -> int:
        return self.total - self._free

    def references(self, block: int) -> int:
        return self._references[block]

    def lookup(self, block_hash: bytes) -> int | None:
        """The block with this content, owned or cached."""
        return self._by_hash.get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the free list, evicting what they cached. Each has one reference.

        Raises ValueError if fewer are available; callers ask `available` first.
        """
        if count > self._free:
            raise ValueError(f"{count} blocks wanted, {self._free} of {self.total} are available")
        taken = []
        following, references, hashes = self._next, self._references, self._hashes
        block = following[NULL_BLOCK]
        for _ in range(count):
            if hashes[block] is not None:
                self._forget(block)
            references[block] = 1
            taken.append(block)
            block = following[block]
        following[NULL_BLOCK], self._previous[block] = block, NULL_BLOCK
        self._free -= count
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take one more reference on blocks whose content is reused."""
        for block in blocks:
            if self._references[block] == 0:
                self._unlink(block)
                if self._hashes[block] is not None:
                    self._cached -= 1
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference on each, last first; `blocks` are in the order of the sequence's table."""
        references, hashes = self._references, self._hashes
        for block in reversed(blocks):
            left = references[block] - 1
            if block == NULL_BLOCK or left < 0:
                raise IntegrityError(f"block {block} is released but has no owner")
            references[block] = left
            if left:
                continue
            if hashes[block] is None:
                self._link_after(NULL_BLOCK, block)
            else:
                self._link_after(self._previous[NULL_BLOCK], block)
                self._cached += 1

    def register(
        self,
        block: int,
        block_hash: bytes,
        parent: bytes | None,
        tokens: Sliceable,
        start: int = 0,
        extras: Extras = (),
    ) -> None:
        """Make an owned, full block reusable under its hash; its tokens are those from `start` on.

        If another block has this content already, that one stays the one to reuse and this one goes without a hash.
        `extras`: of its sequence; they are part of a first block's hash.
        """
        held = len(tokens) - start
        if held < self.block_size:
            raise IntegrityError(f"block {block} is registered with {held} tokens, not {self.block_size}")
        if self._references[block] < 1 or self._hashes[block] is not None:
            raise IntegrityError(f"block {block} is registered without an owner, or twice")
        if block_hash in self._by_hash:
            return
        self._hashes[block] = block_hash
        self._by_hash[block_hash] = block
        if self._record_events:
            self._announce(block_hash, parent, tuple(tokens[start : start + self.block_size]), extras)

    def register_chain(
        self,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        tokens: Sliceable,
        first: int,
        stop: int,
        extras: Extras,
    ) -> None:
        """Register the blocks of a sequence from `first` to before `stop`, which are full: see `register`."""
        if self._record_events or len(tokens) < stop * self.block_size:
            for index in range(first, stop):
                parent = hashes[index - 1] if index else None
                self.register(blocks[index], hashes[index], parent, tokens, index * self.block_size, extras)
            return
        references, known, by_hash = self._references, self._hashes, self._by_hash
        for index in range(first, stop):
            block, block_hash = blocks[index], hashes[index]
            if references[block] < 1 or known[block] is not None:
                raise IntegrityError(f"block {block} is registered without an owner, or twice")
            if block_hash not in by_hash:
                known[block] = block_hash
                by_hash[block_hash] = block

    def _announce(self, block_hash: bytes, parent: bytes | None, tokens: tuple[int, ...], extras: Extras) -> None:
        keys = (tuple(value for _, value in extras),) if extras and parent is None else None
        lora = dict(extras).get("lora")
        self._events.append(
            BlockStored((block_hash,), parent, tokens, self.block_size, lora_name=lora, extra_keys=keys)
        )

    def clear_cache(self) -> None:
        """Forget every hash. Owners keep their blocks; nothing stored before is found again."""
        for block in self._by_hash.values():
            self._hashes[block] = None
        self._by_hash.clear()
        self._cached = 0
        if self._record_events:
            self._events.append(AllBlocksCleared())

    def take_events(self) -> list[KvEvent]:
        """Events since the last call, in order; always empty unless the pool records them."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Walk everything: free + cached + owned == total, the list is whole, hashes point both ways.

        Raises IntegrityError. O(num_blocks): for tests and idle moments.
        """
        on_list: list[int] = []
        block, before = self._next[NULL_BLOCK], NULL_BLOCK
        while block != NULL_BLOCK and len(on_list) <= self.total:
            if self._previous[block] != before or self._references[block] != 0:
                raise IntegrityError(f"block {block} on the free list is linked wrongly or has an owner")
            on_list.append(block)
            block, before = self._next[block], block
        cached = sum(self._hashes[b] is not None for b in on_list)
        owned = sum(r > 0 for r in self._references)
        if len(on_list) != self._free or cached != self._cached or len(on_list) + owned != self.total:
            raise IntegrityError(
                f"free {len(on_list) - cached} + cached {cached} + owned {owned} != total {self.total} "
                f"(counted: available {self._free}, cached {self._cached})"
            )
        if self._references[NULL_BLOCK] != 0 or self._hashes[NULL_BLOCK] is not None:
            raise IntegrityError("the null block has an owner or a hash")
        hashed = {b: h for b, h in enumerate(self._hashes) if h is not None}
        if hashed != {b: h for h, b in self._by_hash.items()}:
            raise IntegrityError("the hash map and the blocks' hashes differ")

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            return
        del self._by_hash[block_hash]
        self._hashes[block] = None
        self._cached -= 1
        if self._record_events:
            self._events.append(BlockRemoved((block_hash,)))

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._free -= 1

    def _link_after(self, before: int, block: int) -> None:
        after = self._next[before]
        self._next[before], self._previous[block] = block, before
        self._next[block], self._previous[after] = after, block
        self._free += 1
