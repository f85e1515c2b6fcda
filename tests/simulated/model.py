"""The model that simulated replicas run: its next token is a function of all tokens before it, and of the seed.

An answer can so be predicted, whichever replicas made it, and a stream that was continued compared with one that
wasn't.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

BLOCK = 16
"""Tokens per block of KV."""
_END = 19
"""One token in so many ends the text."""
_HALF = 7
"""One token in so many is half a character: its text comes with the next token."""


def tokens_of(text: str) -> list[int]:
    data = text.encode()
    return [int.from_bytes(data[i : i + 4], "little") % 50_000 + 100 for i in range(0, len(data), 4)]


def prompt_of(body: dict[str, Any]) -> list[int]:
    """The tokens of a request's prompt."""
    prompt = body.get("prompt") or body.get("input")
    if isinstance(prompt, list):
        return list(prompt)
    if isinstance(prompt, str):
        return tokens_of(prompt)
    return tokens_of("".join(f"<{message['role']}>{message['content']}" for message in body["messages"]))


def next_token(tokens: Sequence[int], seed: int | None) -> int:
    data = struct.pack(f"<q{len(tokens)}i", seed if seed is not None else -1, *tokens)
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little") % 997


def ends(token: int) -> bool:
    return token % _END == 0


def is_half(token: int) -> bool:
    return token % _HALF == 0


def text_of(tokens: Sequence[int]) -> str:
    """The text of output tokens, without a half character at the end."""
    shown = len(tokens)
    while shown and is_half(tokens[shown - 1]):
        shown -= 1
    return "".join(f" w{token}" for token in tokens[:shown])


def answer_to(body: dict[str, Any]) -> tuple[list[int], str]:
    """Output tokens and finish reason of a request."""
    prompt = prompt_of(body)
    seed = None if body.get("temperature") == 0 else body.get("seed")
    limit = body.get("max_completion_tokens") or body.get("max_output_tokens") or body.get("max_tokens") or 16
    output: list[int] = list(body.get("resume_token_ids") or ())
    while len(output) < limit:
        token = next_token([*prompt, *output], seed)
        if ends(token):
            return output, "stop"
        output.append(token)
    return output, "length"
