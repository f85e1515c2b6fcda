"""The prefix hash chain: names the content of a full KV block by everything that determined it.

    h0 = H(seed, tokens of block 0, extras)     h1 = H(h0, tokens of block 1)     h2 = H(h1, tokens of block 2) ...

Two sequences that share h_i share every token up to the end of block i and every extra, so block i's KV can be
reused. H is SHA-256 over an encoding that can be decoded again in one way only: a collision would be a collision of
SHA-256, which is why a hit needs no second comparison. The seed is fixed, so replicas name the same content alike.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

SEED = hashlib.sha256(b"shoal.prefix.v1").digest()
"""Parent of every first block."""

Extras = tuple[tuple[str, str], ...]
"""What else the KV depends on, as (tag, value): `("lora", name)`, `("cache_salt", salt)`."""

_LENGTH = struct.Struct("<Q")


def make_extras(lora: str | None, cache_salt: str | None) -> Extras:
    """The tagged extras of a request, in a fixed order; absent ones leave no trace."""
    if lora is None and cache_salt is None:
        return ()
    tagged = (("lora", lora), ("cache_salt", cache_salt))
    return tuple((tag, value) for tag, value in tagged if value is not None)


def _framed(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def block_hash(parent: bytes, tokens: Sequence[int], extras: Extras = ()) -> bytes:
    """SHA-256 (32 bytes) of one block, given its parent's hash, all its token ids and, for a first block, extras.

    Token ids are packed as 64-bit integers; lengths frame every field, so a LoRA name can't pass for a salt.
    """
    digest = hashlib.sha256(parent)
    digest.update(struct.pack(f"<Q{len(tokens)}q", len(tokens), *tokens))
    for tag, value in extras:
        digest.update(_framed(tag) + _framed(value))
    return digest.digest()


class Sliceable(Protocol):
    """Tokens that can be counted and cut."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class PrefixHasher:
    """Hashes sequences at the granularity of the block pool it serves."""

    block_size: int

    def extend(self, hashes: list[bytes], tokens: Sliceable, extras: Extras) -> None:
        """Append the hashes of the full blocks of `tokens` that `hashes` lacks; each block is hashed once."""
        size = self.block_size
        for index in range(len(hashes), len(tokens) // size):
            parent = hashes[-1] if hashes else SEED
            chunk = tokens[index * size : (index + 1) * size]
            hashes.append(block_hash(parent, chunk, extras if index == 0 else ()))

    def hashes(self, tokens: Iterable[int], extras: Extras = ()) -> list[bytes]:
        """The whole chain of a token sequence; what a router computes to find the replica that holds it."""
        chain: list[bytes] = []
        self.extend(chain, tuple(tokens), extras)
        return chain
