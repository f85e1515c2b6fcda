"""What prompts and answers contain, where only that counts which of them begin alike.

A prompt is pieces: (key, tokens). Pieces of equal key have equal content, a shorter one being the beginning of a
longer one; a key of None is content that nobody else has. `ChainHasher` names full blocks by that.
"""

import struct
from bisect import bisect_right
from collections.abc import Hashable, Sequence

from shoal.policy.batching.prefix import Extras
from shoal.policy.batching.request import Tokens

Piece = tuple[Hashable, int]
"""(key, tokens)."""
_NAME = struct.Struct("<q")
_FAR = 1 << 62
"""Beyond every prompt."""


class CountedTokens:
    """Tokens of a sequence without their values: a prompt's pieces, then an answer that grows."""

    __slots__ = ("_answer", "_ends", "_pieces", "_prompt", "_unique", "length")

    def __init__(self, pieces: Sequence[Piece], prompt: int, answer: Hashable, length: int) -> None:
        """`prompt`: tokens of `pieces`; `answer`: its key."""
        self.length = length
        self._pieces = pieces
        self._prompt = prompt
        self._answer = answer
        self._ends: list[int] | None = None
        self._unique = _FAR

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice, /) -> Sequence[int]:
        return range(*part.indices(self.length))

    def append(self, token: int, /) -> None:
        self.length += 1

    def _index(self) -> list[int]:
        """Where each piece ends."""
        ends, end, unique = [], 0, self._prompt if self._answer is None else _FAR
        for key, tokens in self._pieces:
            if key is None and end < unique:
                unique = end
            end += tokens
            ends.append(end)
        self._ends, self._unique = ends, unique
        return ends

    @property
    def unique(self) -> int:
        """Where content begins that nobody else has."""
        if self._ends is None:
            self._index()
        return self._unique

    def content(self, start: int, size: int) -> Hashable:
        """What names the tokens from `start` on, all before `unique`, given all before them."""
        stop, ends = start + size, self._ends or self._index()
        if start >= self._prompt:
            return self._answer, start - self._prompt
        piece = bisect_right(ends, start)
        offset = start - (ends[piece - 1] if piece else 0)
        if stop <= ends[piece]:
            return self._pieces[piece][0], offset
        parts: list[Hashable] = []
        while start < stop and piece < len(ends):
            end = min(stop, ends[piece])
            parts.append((self._pieces[piece][0], offset, end - start))
            start, piece, offset = end, piece + 1, 0
        if start < stop:
            parts.append((self._answer, 0, stop - start))
        return tuple(parts)


class ChainHasher:
    """Names blocks by numbers, in the order in which they are first seen; one serves all of a run."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[Hashable, Hashable], bytes] = {}
        self._count = 0

    def extend(self, hashes: list[bytes], tokens: Tokens, extras: Extras) -> None:
        """Append the names of the full blocks of `tokens` that `hashes` lacks."""
        assert isinstance(tokens, CountedTokens)
        size, full, known = self.block_size, tokens.length // self.block_size, len(hashes)
        if known >= full:
            return
        shared = min(full, tokens.unique // size)
        names, content = self._names, tokens.content
        parent: Hashable = hashes[-1] if hashes else extras
        for index in range(known, shared):
            what = parent, content(index * size, size)
            name = names.get(what)
            if name is None:
                self._count += 1
                names[what] = name = _NAME.pack(self._count)
            hashes.append(name)
            parent = name
        if len(hashes) < full:
            first, self._count = self._count + 1, self._count + full - len(hashes)
            hashes += map(_NAME.pack, range(first, self._count + 1))

    def chain(self, pieces: Sequence[Piece], tokens: int, extras: Extras = ()) -> tuple[bytes, ...]:
        """Return the names of all full blocks of a prompt of so many tokens."""
        hashes: list[bytes] = []
        size, names = self.block_size, self._names
        parent: Hashable = extras
        for key, length in pieces:
            # Pieces of one block each, as traces have them, name it by their key: the same as `extend` does.
            if length != size or key is None:
                break
            what = parent, (key, 0)
            name = names.get(what)
            if name is None:
                self._count += 1
                names[what] = name = _NAME.pack(self._count)
            hashes.append(name)
            parent = name
        self.extend(hashes, CountedTokens(pieces, tokens, None, tokens), extras)
        return tuple(hashes)
