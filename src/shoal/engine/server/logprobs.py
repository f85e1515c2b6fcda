"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Iterable, Sequence

from shoal.engine.server.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching.plan import TokenLogprobs

_FLOOR = -9999.0
"""JSON has no infinity; OpenAI's API uses this for a token that is practically impossible."""


def finite(value: float) -> float:
    return value if value > _FLOOR else _FLOOR


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs], top: int) -> ChatLogprobs:
    """One entry a generated token, each with its `top` most likely alternatives."""
    return ChatLogprobs([_chat_entry(tokenizer, entry, top) for entry in entries])


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs, top: int) -> TokenLogprob:
    raw = [tokenizer.token_bytes(token) for token in entry.token_ids[: top + 1]]
    shown = [
        TopLogprob(_text(piece), finite(logprob), list(piece))
        for piece, logprob in zip(raw, entry.logprobs, strict=False)
    ]
    first = shown[0]
    return TokenLogprob(first.token, first.logprob, first.bytes, shown[1:])


def completion_logprobs(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    top: int,
    offset: int,
) -> CompletionLogprobs:
    """The legacy shape. An entry that is None (the first prompt token) has a null probability.

    `offset` is where the first token begins in the answer's text, in characters.
    """
    texts = [_text(tokenizer.token_bytes(token)) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[None if entry is None else finite(entry.logprobs[0]) for entry in entries],
        top_logprobs=[_legacy_top(tokenizer, entry, top) for entry in entries] if top else None,
        text_offset=offsets,
    )


def _legacy_top(tokenizer: Tokenizer, entry: TokenLogprobs | None, top: int) -> dict[str, float] | None:
    if entry is None:
        return None
    best: dict[str, float] = {}
    # The most likely come first after the chosen one; two tokens may show the same text, the likelier is kept.
    for token, logprob in [*zip(entry.token_ids, entry.logprobs, strict=True)][1 : top + 1]:
        best.setdefault(_text(tokenizer.token_bytes(token)), finite(logprob))
    best.setdefault(_text(tokenizer.token_bytes(entry.token_ids[0])), finite(entry.logprobs[0]))
    return best


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> PromptLogprobs:
    """One entry a prompt token; nothing comes before the first, so its entry is null."""
    return [None, *(_prompt_entry(tokenizer, entry) for entry in entries)]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[int, PromptLogprob]:
    found: dict[int, PromptLogprob] = {}
    for place, (token, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
        rank = entry.rank if place == 0 else place
        found.setdefault(token, PromptLogprob(finite(logprob), rank, _text(tokenizer.token_bytes(token))))
    return found


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", errors="replace")
