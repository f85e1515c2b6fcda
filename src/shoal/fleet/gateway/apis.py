"""The HTTP APIs that pass through a fleet, and what a gateway has to know of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from shoal.fleet.gateway.formats import CompletionsFormat, MessagesFormat, ResponsesFormat, StreamFormat

Endpoint = Literal[
    "chat",
    "completions",
    "responses",
    "messages",
    "count_tokens",
    "embeddings",
    "score",
    "rerank",
    "tokenize",
    "detokenize",
]


@dataclass(frozen=True, slots=True)
class Api:
    """One of them; every path of it is passed on as it came."""

    endpoint: Endpoint
    prompts: tuple[str, ...]
    """Fields of the body: the first that is there is the prompt, by which requests are weighed and routed."""
    form: StreamFormat
    generates: bool = False
    """Its answers have output tokens, and may be streamed."""
    computes: bool = True
    """The model runs; else only the tokenizer does."""
    chunked: bool = False
    """Its streams have OpenAI's chunks: `stream_options`, token ids, continuation and split apply."""


_COMPLETIONS = CompletionsFormat()
_CHAT = Api("chat", ("messages",), _COMPLETIONS, generates=True, chunked=True)
_TEXT = Api("completions", ("prompt",), _COMPLETIONS, generates=True, chunked=True)
_SCORE = Api("score", ("documents", "text_2", "items"), _COMPLETIONS)
_RERANK = Api("rerank", ("documents",), _COMPLETIONS)

APIS: Mapping[str, Api] = MappingProxyType(
    {
        "/v1/chat/completions": _CHAT,
        "/v1/completions": _TEXT,
        "/v1/responses": Api("responses", ("input",), ResponsesFormat(), generates=True),
        "/v1/messages": Api("messages", ("messages",), MessagesFormat(), generates=True),
        "/v1/messages/count_tokens": Api("count_tokens", ("messages",), MessagesFormat(), computes=False),
        "/v1/embeddings": Api("embeddings", ("input", "messages"), _COMPLETIONS),
        "/v1/score": _SCORE,
        "/score": _SCORE,
        "/v1/rerank": _RERANK,
        "/v2/rerank": _RERANK,
        "/rerank": _RERANK,
        "/tokenize": Api("tokenize", ("messages", "prompt"), _COMPLETIONS, computes=False),
        "/detokenize": Api("detokenize", (), _COMPLETIONS, computes=False),
    }
)
"""By path."""
ENDPOINTS: Mapping[Endpoint, Api] = MappingProxyType({api.endpoint: api for api in APIS.values()})
"""By name."""
