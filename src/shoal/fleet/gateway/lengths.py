"""Prompts that no context can hold: refused here, before a replica has to read, parse and refuse them as well.

Only what is certain is refused. A replica says how many bytes of text fill its context at the most. Of a prompt,
only those bytes are counted that end up in a token whatever the template does: white space may be trimmed, an
escape may stand for a character that the vocabulary lacks, earlier answers may be left out.
"""

import asyncio
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from shoal.fleet.gateway.body import Parsed, given
from shoal.fleet.registry import Registry
from shoal.http.errors import in_messages_words, prompt_too_long
from shoal.http.json_limits import UNCHECKED_BYTES, count, pieces

_LONGEST_ESCAPE = 6
_NO_TOKEN_FROM = 0xF1
"""UTF-8 lead bytes of characters that are not assigned: vocabularies may lack them."""


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The longest context among a model's replicas."""

    tokens: int
    text_bytes: int
    """Of UTF-8, which fill it at the most."""


class _Said(msgspec.Struct):
    role: str = ""
    content: Raw = Raw()


class _Part(msgspec.Struct):
    text: Raw = Raw()


_said = msgspec.json.Decoder(list[_Said])
_raws = msgspec.json.Decoder(list[Raw])
_parts = msgspec.json.Decoder(list[_Part])


def context_limit(registry: Registry, model: str) -> ContextLimit | None:
    """None: some replica of the model doesn't say it."""
    handles = [replica.handle for replica in registry.replicas if model in replica.handle.models]
    tokens = max((handle.max_model_len for handle in handles), default=0)
    text = max((handle.max_prompt_bytes for handle in handles), default=0)
    known = all(handle.max_model_len and handle.max_prompt_bytes for handle in handles)
    return ContextLimit(tokens, text) if handles and known else None


async def check_fits(parsed: Parsed, registry: Registry) -> None:
    """Raise `ApiError` 400 where the prompt exceeds the context of every replica for certain."""
    if parsed.prompt_bytes <= UNCHECKED_BYTES or parsed.endpoint not in ("chat", "completions", "messages"):
        return
    limit = context_limit(registry, parsed.ask.model)
    if limit is None or given(parsed.ask.truncate_prompt_tokens):
        return
    least = await asyncio.to_thread(min_tokens, parsed, limit)
    if least > limit.tokens:
        error = prompt_too_long(limit.tokens, least, parsed.api.prompts[0])
        raise in_messages_words(error) if parsed.endpoint == "messages" else error


def min_tokens(parsed: Parsed, limit: ContextLimit) -> int:
    """The tokens that a context needs at the least for this prompt, or for the longest of several."""
    try:
        if parsed.endpoint == "completions":
            return _of_prompt(parsed.prompt, limit)
        counted = sum(_of_content(said.content) for said in _said.decode(parsed.prompt) if said.role != "assistant")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # The replica says what is wrong with it.
        return 0
    return -(-counted * limit.tokens // limit.text_bytes)


def _of_prompt(prompt: Raw, limit: ContextLimit) -> int:
    data = np.frombuffer(prompt, np.uint8)
    if data[0] == ord('"'):
        return -(-_certain_bytes(data) * limit.tokens // limit.text_bytes)
    if data[0] != ord("["):
        return 0
    following = bytes(memoryview(prompt)[1:64]).lstrip()[:1]
    if following.isdigit():
        return sum(count(piece, ",") for piece in pieces(data)) + 1
    return max((_of_prompt(each, limit) for each in _raws.decode(prompt)), default=0)


def _of_content(content: Raw) -> int:
    """Bytes of a message's text."""
    data = np.frombuffer(content, np.uint8)
    if not data.size or data[0] not in b'"[':
        return 0
    if data[0] == ord('"'):
        return _certain_bytes(data)
    texts = (np.frombuffer(part.text, np.uint8) for part in _parts.decode(content))
    return sum(_certain_bytes(text) for text in texts if text.size and text[0] == ord('"'))


def _certain_bytes(text: NDArray[np.uint8]) -> int:
    """Of a JSON string, quotes and all."""
    left_out = 2
    for piece in pieces(text):
        left_out += count(piece, " ") + _LONGEST_ESCAPE * count(piece, "\\")
        left_out += int(np.count_nonzero(piece >= _NO_TOKEN_FROM))
    return max(0, text.size - left_out)
