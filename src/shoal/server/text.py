"""`/tokenize` and `/detokenize`."""

import msgspec
from msgspec import UNSET, UnsetType

from shoal.engine.frontend import Frontend
from shoal.http.errors import ApiError, bad_value
from shoal.server.prompts import check_tokenized_bytes
from shoal.server.protocol import DetokenizeRequest, TokenizeRequest
from shoal.server.rendering import render_chat


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def tokenize(frontend: Frontend, body: TokenizeRequest) -> Tokenized:
    """Token ids of a prompt, or of messages as the chat endpoint renders them; 400 unless it is one of the two."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "expected either prompt or messages", param="prompt", code="missing_required_parameter")
    if body.prompt is not None:
        check_tokenized_bytes(body.prompt, "prompt")
        tokens = frontend.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        tokens = render_chat(frontend.tokenizer, body, body.tools or [])
    strings = [frontend.tokenizer.token(token) or "" for token in tokens] if body.return_token_strs else UNSET
    return Tokenized(len(tokens), frontend.max_model_len, tokens, strings)


def detokenize(frontend: Frontend, body: DetokenizeRequest) -> Detokenized:
    """Text of token ids; `ApiError` 400 names the first one outside the vocabulary."""
    for token in body.tokens:
        if token >= frontend.spec.vocab:
            raise bad_value("tokens", token, f"expected token ids from 0 to {frontend.spec.vocab - 1}")
    text = frontend.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens is True)
    return Detokenized(text)
