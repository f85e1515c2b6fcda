"""Bodies and answers of `/v1/embeddings` (OpenAI's), `/v1/score` (vLLM's) and `/rerank` (Jina's and vLLM's)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.server.fields import TokenId

MAX_INPUTS = 2048
"""Texts of one request, as OpenAI has it."""
Text = Annotated[str, Meta(max_length=2**22)]
Truncation = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class EmbeddingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`."""

    model: str
    input: Text | Annotated[list[Text | TokenId | list[TokenId]], Meta(min_length=1, max_length=2**20)]
    """Text, token ids, or a list of either; a list holds one kind only."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    """Numbers of a vector, where the model says that its vectors may be cut."""
    truncate_prompt_tokens: Truncation | None = None
    """Cut longer texts to so many tokens; -1: to what the model takes. Without it they are refused."""
    user: str | None = None


class ScoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/score`: one text with each of several, or as many pairs as there are."""

    model: str
    text_1: Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_INPUTS)]
    text_2: Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_INPUTS)]
    truncate_prompt_tokens: Truncation | None = None
    user: str | None = None


class Document(msgspec.Struct, frozen=True):
    text: Text


class RerankRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`."""

    model: str
    query: Text
    documents: Annotated[list[Text | Document], Meta(min_length=1, max_length=MAX_INPUTS)]
    top_n: Annotated[int, Meta(ge=0)] | None = None
    """The best so many; 0 or null: all."""
    return_documents: bool | None = None
    """False: results name documents by `index` only."""
    truncate_prompt_tokens: Truncation | None = None
    user: str | None = None


class PoolingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingData(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 of their float32, little-endian."""
    object: str = "embedding"


class EmbeddingList(msgspec.Struct, frozen=True):
    model: str
    data: list[EmbeddingData]
    usage: PoolingUsage
    object: str = "list"


class ScoreData(msgspec.Struct, frozen=True):
    index: int
    score: float
    object: str = "score"


class ScoreList(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[ScoreData]
    usage: PoolingUsage
    object: str = "list"


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: Document | None = None


class RerankList(msgspec.Struct, frozen=True):
    id: str
    model: str
    results: list[RerankResult]
    usage: PoolingUsage
