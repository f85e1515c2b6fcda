"""Contents of prompts: token ids or text that depend on nothing but the seed and a segment's key.

Ids are drawn from those that a text in plain English uses, so that every one is valid and none is special. Text is
cut to length with the server's own tokenizer where it offers one.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from shoal.specs.errors import SpecError
from shoal.workload.load import Segment

CountTokens = Callable[[str], Awaitable[int]]

SAMPLE = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music market sense "
    "nation plan college interest death experience effect use class control care field role effort rate "
    "heart drug show leader light voice wife police mind price report decision son view relationship town road arm "
    "difference value building action season society tax director position player record paper space ground form "
    "event official matter center couple site project activity star table need court oil situation cost industry "
    "figure street image phone data picture practice piece land product doctor wall patient worker news test movie "
    "north love support technology fish river sea wind stone tree bridge ship harbour island coast winter summer"
)
WORDS = tuple(SAMPLE.split())
_CHUNK = 512
_TRIES = 6


def _seeded(seed: str, key: str, chunk: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}:{chunk}:{key}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _drawn(seed: str, key: str, count: int, below: int) -> list[int]:
    """`count` numbers below `below`; fewer of the same key are the beginning of more."""
    drawn: list[int] = []
    chunk = 0
    while len(drawn) < count:
        drawn += _seeded(seed, key, chunk).integers(below, size=_CHUNK).tolist()
        chunk += 1
    return drawn[:count]


class IdPrompts:
    """Segments as token ids, of exactly the length asked for."""

    def __init__(self, seed: str, pool: Sequence[int]) -> None:
        self._seed = seed
        self._pool = tuple(sorted(set(pool)))

    def ids(self, segment: Segment) -> list[int]:
        pool = self._pool
        return [pool[i] for i in _drawn(self._seed, segment.name, segment.tokens, len(pool))]


class TextPrompts:
    """Segments as text of as nearly the length asked for as the tokenizer lets a text be."""

    def __init__(self, seed: str, count: CountTokens | None) -> None:
        self._seed = seed
        self._count = count
        self._letters_per_token = 5.0
        self._made: dict[tuple[str, int], str] = {}

    async def text(self, segment: Segment, reserve: int = 0) -> str:
        """The segment's text, `reserve` tokens shorter: those that a chat template adds. Kept for reuse."""
        tokens = segment.tokens - reserve
        if tokens < 1:
            raise SpecError(
                "input", segment.tokens, f"more than {reserve} tokens: the chat template adds that many"
            )
        key = (segment.name, tokens)
        if key not in self._made:
            self._made[key] = await self._fitted(segment.name, tokens)
        return self._made[key]

    def _words(self, key: str, letters: int) -> str:
        # Every word has at least two letters and a space.
        text = " ".join(WORDS[i] for i in _drawn(self._seed, key, letters // 3 + 1, len(WORDS)))
        text = text[:letters]
        # A blank at the end would be dropped, or be a token of its own.
        return text[:-1] + "s" if text.endswith(" ") else text

    async def _fitted(self, key: str, tokens: int) -> str:
        if self._count is None:
            return " ".join(WORDS[i] for i in _drawn(self._seed, key, tokens, len(WORDS)))
        letters = max(1, round(tokens * self._letters_per_token))
        best, error = "", tokens
        for _ in range(_TRIES):
            text = self._words(key, letters)
            counted = await self._count(text)
            if abs(counted - tokens) < error or not best:
                best, error = text, abs(counted - tokens)
            if error == 0:
                break
            per_token = len(text) / max(1, counted)
            step = round((tokens - counted) * per_token)
            letters = max(1, len(text) + (step or (1 if counted < tokens else -1)))
        self._letters_per_token = 0.9 * self._letters_per_token + 0.1 * len(best) / tokens
        return best
