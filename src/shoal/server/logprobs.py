"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Callable, Iterable, Sequence

from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from shoal.server.fields import GenerationRequest

_FLOOR = -9999.0
"""JSON has no infinity; OpenAI's API uses this for a token that is practically impossible."""


def finite(value: float) -> float:
    return value if value > _FLOOR else _FLOOR


Naming = Callable[[int], str]
"""From a token id to what `token` (or `tokens`) says of it."""


def naming(body: GenerationRequest, tokenizer: Tokenizer) -> Naming:
    """Return how the request wants tokens named: by their text, or `token_id:17`."""
    return "token_id:{}".format if body.return_tokens_as_token_ids else tokenizer.token_text


def completion_naming(body: GenerationRequest, tokenizer: Tokenizer) -> Naming:
    """Return how tokens are named where their text is all that is told of them.

    A token that is not whole UTF-8 is `bytes:` and its bytes, as in OpenAI's API: U+FFFD would be the name of many
    tokens, of which `top_logprobs` could then hold one only [vllm#6626].
    """
    if body.return_tokens_as_token_ids:
        return naming(body, tokenizer)
    return lambda token: _distinct_text(tokenizer.token_bytes(token))


def _distinct_text(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in piece)


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs], top: int, name: Naming) -> ChatLogprobs:
    """Return one entry per generated token, each with its `top` most likely alternatives."""
    return ChatLogprobs([_chat_entry(tokenizer, entry, top, name) for entry in entries])


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs, top: int, name: Naming) -> TokenLogprob:
    shown = [
        TopLogprob(name(token), finite(logprob), list(tokenizer.token_bytes(token)))
        for token, logprob in zip(entry.token_ids[: top + 1], entry.logprobs, strict=False)
    ]
    first = shown[0]
    return TokenLogprob(first.token, first.logprob, first.bytes, shown[1:])


def completion_logprobs(
    name: Naming,
    tokens: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    top: int,
    offsets: list[int],
) -> CompletionLogprobs:
    """Return the legacy shape. An entry that is None (the first prompt token) has a null probability.

    `offsets` are where the tokens begin in the answer's text, in characters.
    """
    return CompletionLogprobs(
        tokens=[name(token) for token in tokens],
        token_logprobs=[None if entry is None else finite(entry.logprobs[0]) for entry in entries],
        top_logprobs=[_legacy_top(name, entry, top) for entry in entries] if top else None,
        text_offset=offsets,
    )


def _legacy_top(name: Naming, entry: TokenLogprobs | None, top: int) -> dict[str, float] | None:
    if entry is None:
        return None
    best: dict[str, float] = {}
    # The most likely come first after the chosen one; two tokens may show the same text, the likelier is kept.
    for token, logprob in [*zip(entry.token_ids, entry.logprobs, strict=True)][1 : top + 1]:
        best.setdefault(name(token), finite(logprob))
    best.setdefault(name(entry.token_ids[0]), finite(entry.logprobs[0]))
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
