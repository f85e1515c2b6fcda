"""What the block pool tells the world about its cache, in the field names of vLLM's KV events.

Encoded by msgspec they are maps tagged with `type`, the form that newer vLLM publishes.
"""

import msgspec


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """A chain of blocks can now be reused; `token_ids` are all their tokens, `block_size` a block."""

    block_hashes: tuple[bytes, ...]
    parent_block_hash: bytes | None
    """None: `block_hashes[0]` is the first block of a sequence."""
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[tuple[str, ...] | None, ...] | None = None
    """Per block: what its hash depends on beside its tokens, without tags: a LoRA's name, a cache salt."""


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """These blocks were evicted."""

    block_hashes: tuple[bytes, ...]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing that was announced before can be reused."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
