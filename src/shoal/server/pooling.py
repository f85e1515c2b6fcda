"""`/v1/embeddings`, `/v1/score` and `/rerank`: vectors of texts, and scores of pairs of them."""

import asyncio
import base64
import time
from collections.abc import Sequence

import msgspec
import torch
from starlette.responses import Response
from torch import Tensor

from shoal.engine.errors import EngineDead
from shoal.engine.pooling.engine import PoolingEngine
from shoal.engine.pooling.model import TokenSequence
from shoal.engine.pooling.text import TextTooLong
from shoal.http.errors import CONTEXT_EXCEEDED, JSON_TYPE, ApiError, bad_value, unavailable
from shoal.server.pooling_protocol import (
    MAX_INPUTS,
    Document,
    EmbeddingData,
    EmbeddingList,
    EmbeddingRequest,
    PoolingUsage,
    RerankList,
    RerankRequest,
    RerankResult,
    ScoreData,
    ScoreList,
    ScoreRequest,
)


async def embed(engine: PoolingEngine, body: EmbeddingRequest) -> Response:
    """The vectors of the inputs, in order. `ApiError` 400 for what the model can't embed."""
    if engine.spec.scores:
        raise ApiError(
            400,
            f"model {body.model!r} scores pairs of texts and gives no vectors; use /v1/score or /rerank",
            param="model",
            code="unsupported_model",
        )
    width = _width(engine, body.dimensions)
    sequences = await asyncio.to_thread(_inputs, engine, body)
    vectors = await _pooled(engine, sequences)
    return await asyncio.to_thread(_embedding_answer, body, vectors, width, sequences)


async def score(engine: PoolingEngine, body: ScoreRequest, request_id: str) -> Response:
    """A score per pair."""
    ones = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    twos = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(ones) == 1:
        ones = ones * len(twos)
    if len(ones) != len(twos):
        raise bad_value("text_2", f"{len(twos)} texts", f"expected {len(ones)}, as text_1 has, or one text_1")
    scores, usage = await _scores(engine, ones, twos, body.truncate_prompt_tokens, ("text_1", "text_2"))
    data = [ScoreData(index, value) for index, value in enumerate(scores)]
    return _answer(ScoreList(f"score-{request_id}", int(time.time()), body.model, data, usage))


async def rerank(engine: PoolingEngine, body: RerankRequest, request_id: str) -> Response:
    """Documents by falling relevance to the query; equal ones in the order given."""
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    names = ("query", "documents")
    scores, usage = await _scores(engine, [body.query] * len(texts), texts, body.truncate_prompt_tokens, names)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    shown = body.return_documents is not False
    results = [RerankResult(i, scores[i], Document(texts[i]) if shown else None) for i in order]
    return _answer(RerankList(f"rerank-{request_id}", body.model, results[: body.top_n or None], usage))


def _width(engine: PoolingEngine, dimensions: int | None) -> int:
    allowed = engine.spec.dimensions
    if dimensions is None or dimensions == engine.width:
        return engine.width
    if allowed is None:
        raise bad_value(
            "dimensions", dimensions, f"expected {engine.width}: the model doesn't say that its vectors may be cut"
        )
    if dimensions > engine.width or (allowed and dimensions not in allowed):
        accepted = ", ".join(map(str, allowed)) if allowed else f"1 to {engine.width}"
        raise bad_value("dimensions", dimensions, f"expected {accepted}")
    return dimensions


def _inputs(engine: PoolingEngine, body: EmbeddingRequest) -> list[TokenSequence]:
    given = body.input
    if isinstance(given, str):
        items: Sequence[str | list[int]] = [given]
    elif len(kinds := {type(item) for item in given}) > 1:
        raise bad_value(
            "input", "items of several kinds", "a list holds strings, or token ids, or lists of token ids"
        )
    elif kinds == {int}:
        items = [[item for item in given if isinstance(item, int)]]
    else:
        items = [item for item in given if not isinstance(item, int)]
    if len(items) > MAX_INPUTS:
        raise bad_value("input", f"{len(items)} texts", f"expected at most {MAX_INPUTS}")
    limit = _limit(engine, body.truncate_prompt_tokens)
    sequences = []
    for place, item in enumerate(items):
        field = "input" if len(items) == 1 else f"input[{place}]"
        if isinstance(item, str):
            sequence = _encoded(engine, field, item, limit=limit)
        else:
            sequence = TokenSequence(tuple(item[:limit]))
            if (wrong := next((t for t in item if t >= engine.vocab), None)) is not None:
                raise bad_value(field, wrong, f"expected token ids below {engine.vocab}")
        sequences.append(_checked(engine, sequence, field))
    return sequences


def _limit(engine: PoolingEngine, wanted: int | None) -> int | None:
    if wanted is None or wanted == -1:
        return wanted and engine.max_model_len
    if not 1 <= wanted <= engine.max_model_len:
        raise bad_value("truncate_prompt_tokens", wanted, f"expected -1, or 1 to {engine.max_model_len}")
    return wanted


def _checked(engine: PoolingEngine, sequence: TokenSequence, field: str) -> TokenSequence:
    length = len(sequence.ids)
    if not length:
        raise ApiError(400, f"{field}: it is empty; expected at least one token", param=field, code="invalid_value")
    if length > engine.max_model_len:
        raise _too_long(field, length, engine.max_model_len)
    return sequence


def _encoded(
    engine: PoolingEngine, field: str, text: str, pair: str | None = None, limit: int | None = None
) -> TokenSequence:
    try:
        return _checked(engine, engine.text.encode(text, pair, limit, engine.max_model_len), field)
    except TextTooLong as error:
        raise _too_long(field, error.length, engine.max_model_len) from None


def _too_long(field: str, length: int, limit: int) -> ApiError:
    return ApiError(
        400,
        f"{field}: it has {length} tokens, the model takes {limit}; truncate_prompt_tokens: -1 cuts it",
        param=field,
        code=CONTEXT_EXCEEDED,
    )


async def _pooled(engine: PoolingEngine, sequences: Sequence[TokenSequence]) -> Tensor:
    try:
        return await engine.pool(sequences)
    except EngineDead as error:
        raise unavailable(str(error), "engine_dead") from None


async def _scores(
    engine: PoolingEngine, ones: list[str], twos: list[str], truncate: int | None, fields: tuple[str, str]
) -> tuple[list[float], PoolingUsage]:
    """By the model's own score of a pair; of a model that gives vectors, by their cosine."""
    limit = _limit(engine, truncate)
    if engine.spec.scores:
        pairs = await asyncio.to_thread(
            lambda: [
                _encoded(engine, f"{fields[1]}[{place}]", one, two, limit)
                for place, (one, two) in enumerate(zip(ones, twos, strict=True))
            ]
        )
        return (await _pooled(engine, pairs)).tolist(), _usage(pairs)
    texts = dict.fromkeys(ones, fields[0]) | {text: f"{fields[1]}[{i}]" for i, text in enumerate(twos)}
    places = {text: place for place, text in enumerate(texts)}
    sequences = await asyncio.to_thread(
        lambda: [_encoded(engine, name, text, limit=limit) for text, name in texts.items()]
    )
    vectors = torch.nn.functional.normalize(await _pooled(engine, sequences), dim=1)
    left, right = ([places[text] for text in side] for side in (ones, twos))
    return (vectors[left] * vectors[right]).sum(1).tolist(), _usage(sequences)


def _embedding_answer(
    body: EmbeddingRequest, vectors: Tensor, width: int, sequences: Sequence[TokenSequence]
) -> Response:
    if width < vectors.shape[1]:
        # A cut vector is no longer of length one.
        vectors = torch.nn.functional.normalize(vectors[:, :width], dim=1)
    data = []
    for index, vector in enumerate(vectors):
        if body.encoding_format == "base64":
            numbers: list[float] | str = base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        else:
            numbers = vector.tolist()
        data.append(EmbeddingData(index, numbers))
    return _answer(EmbeddingList(body.model, data, _usage(sequences)))


def _usage(sequences: Sequence[TokenSequence]) -> PoolingUsage:
    tokens = sum(len(sequence.ids) for sequence in sequences)
    return PoolingUsage(tokens, tokens)


def _answer(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON_TYPE)
