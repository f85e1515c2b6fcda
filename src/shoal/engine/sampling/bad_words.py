"""Words that an output must not have."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.engine.sampling.params import SamplingParams


def resolve_bad_words(params: SamplingParams, encode: Callable[[str], Sequence[int]]) -> SamplingParams:
    """Return the parameters with `bad_words` as token ids; `encode` adds no special tokens. Called at the edge.

    Each word is taken as it stands at the beginning of a text and as it stands after a space.
    """
    if not params.bad_words:
        return params
    spelled: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        for text in (word, f" {word.lstrip()}"):
            if ids := tuple(encode(text)):
                spelled.setdefault(ids)
    return msgspec.structs.replace(params, bad_word_ids=tuple(spelled))


class BadWords:
    """Finds the tokens that would complete a word, given the output so far; constant time per token and word."""

    def __init__(self, words: Sequence[tuple[int, ...]], output: Sequence[int]) -> None:
        self._single = np.array(sorted({word[0] for word in words if len(word) == 1}), np.int64)
        self._longer = [word for word in words if len(word) > 1]
        self._keep = max((len(word) - 1 for word in self._longer), default=0)
        self._tail = tuple(output[-self._keep :]) if self._keep else ()

    def observe(self, token: int) -> None:
        """A token was appended to the output."""
        if self._keep:
            self._tail = (*self._tail, token)[-self._keep :]

    def banned(self) -> NDArray[np.int64]:
        """Return the token ids that may not come next."""
        ends = [word[-1] for word in self._longer if self._tail[-(len(word) - 1) :] == word[:-1]]
        return np.concatenate([self._single, np.array(ends, np.int64)]) if ends else self._single
