"""What changes a row's logits before a token is chosen: bias, penalties, tokens not allowed yet."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.engine.sampling.bad_words import BadWords
from shoal.engine.sampling.params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of a sequence and how often each is in its output; constant time a token.

    Arrays rather than a dictionary, so that a penalty is one gather and one scatter.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        for token in prompt:
            self._slot(token)
        for token in output:
            self.count(token)

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot

    def count(self, token: int) -> None:
        """One more of `token` in the output."""
        slot = self._slot(token)
        self._counts[slot] += 1

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._slots)]

    @property
    def output_counts(self) -> Floats:
        return self._counts[: len(self._slots)]


class Adjustments:
    """Everything a request's parameters do to its logits, apart from a grammar."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], eos_token_ids: Sequence[int]
    ) -> None:
        self._bias: tuple[Ids, Floats] | None = None
        if params.logit_bias:
            self._bias = (
                np.fromiter(params.logit_bias, np.int64),
                np.fromiter(params.logit_bias.values(), np.float32),
            )
        self._allowed: Ids | None = None
        if params.allowed_token_ids is not None:
            self._allowed = np.array(sorted(set(params.allowed_token_ids)), np.int64)
        self._bad_words = BadWords(params.bad_word_ids, output) if params.bad_word_ids else None
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._repetition = np.float32(params.repetition_penalty)
        repeats = params.repetition_penalty != 1.0
        penalizes = repeats or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._counts = TokenCounts(prompt if repeats else (), output) if penalizes else None
        # ignore_eos is no reason to admit EOS here: it says that EOS does not end the answer, not that it may come.
        early = {*eos_token_ids, *params.stop_token_ids} if params.min_tokens else set()
        self.early_stops: Ids = np.array(sorted(early), np.int64)
        """Tokens that may not come before `min_tokens` are out."""
        self._min_tokens = params.min_tokens

    @property
    def changes_logits(self) -> bool:
        """Whether `apply` ever does anything; the stops held off by `min_tokens` are the caller's to mask."""
        parts = (self._bias, self._counts, self._allowed, self._bad_words)
        return any(part is not None for part in parts)

    def holds_off_stops(self, output_length: int) -> bool:
        return output_length < self._min_tokens

    def observe(self, token: int) -> None:
        """A token was appended to the output."""
        if self._counts is not None:
            self._counts.count(token)
        if self._bad_words is not None:
            self._bad_words.observe(token)

    def apply(self, logits: Floats) -> None:
        """Bias, then penalties, then what is excluded (-inf), in place on one row.

        Repetition (over prompt and output): a positive logit is divided by the penalty, a negative one multiplied
        (CTRL, arXiv:1909.05858). Presence and frequency (over the output): l - presence·[c > 0] - frequency·c, as
        OpenAI's API reference defines them.
        """
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._counts is not None:
            self._penalize(logits, self._counts)
        if self._allowed is not None:
            kept = logits[self._allowed]
            logits.fill(-np.inf)
            logits[self._allowed] = kept
        if self._bad_words is not None:
            logits[self._bad_words.banned()] = -np.inf

    def _penalize(self, logits: Floats, counted: TokenCounts) -> None:
        ids, counts = counted.ids, counted.output_counts
        values = logits[ids]
        if self._repetition != 1:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts + self._presence * (counts > 0)
        logits[ids] = values
