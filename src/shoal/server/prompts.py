"""From a prompt's text to its token ids; what can't fit is refused before it is tokenized."""

from collections.abc import Sequence

from shoal.engine.text.tokenizer import Tokenizer
from shoal.http.errors import ApiError, prompt_too_long

_EXACT_CHARACTERS = 64 * 1024
"""Up to this, tokenizing takes a tenth of a second at most, and its error gives the exact count."""
MAX_TOKENIZED_BYTES = 2 * 2**20
"""Of a text for `/tokenize`, which no context limits: the ids of more would hold the GIL for long."""


def encode_prompt(
    tokenizer: Tokenizer, text: str, *, add_special_tokens: bool, field: str, limit: int | None = None
) -> list[int]:
    """Token ids of `text`. `ApiError` 400 names `field` where the text has `limit` tokens or more at the least.

    Call it in a thread for long texts: it releases the GIL, not the caller.
    """
    if limit is not None:
        check_fits(tokenizer, text, field, limit)
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def check_fits(tokenizer: Tokenizer, text: str, field: str, limit: int) -> None:
    """`ApiError` 400 names `field` where a long `text` has `limit` tokens or more for certain."""
    if len(text) > _EXACT_CHARACTERS and (least := tokenizer.min_tokens(text, limit)) >= limit:
        raise prompt_too_long(limit, least, field)


def truncated(prompt: Sequence[int], wanted: int | None, room: int) -> Sequence[int]:
    """Return the last `wanted` tokens of a prompt; -1: as many as `room` (at least one); None: all of them."""
    if wanted is None:
        return prompt
    kept = max(room, 1) if wanted == -1 else wanted
    return prompt[len(prompt) - kept :] if kept < len(prompt) else prompt


def check_tokenized_bytes(text: str, field: str) -> None:
    """`ApiError` 400 for a text that `/tokenize` does not take."""
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_TOKENIZED_BYTES:
        raise ApiError(
            400, f"{field}: {size} bytes; expected at most {MAX_TOKENIZED_BYTES}", param=field, code="invalid_value"
        )
