"""The served OpenAPI 3.1 document, made from the very types that requests are checked against."""

from typing import Any

import msgspec

from shoal import __version__
from shoal.http.errors import ErrorResponse, MessagesErrorResponse
from shoal.server.answers import ChatCompletion, Completion
from shoal.server.messages.answers import MessageObject, TokensCounted
from shoal.server.messages.request import CountTokensRequest, MessagesRequest
from shoal.server.pooling_protocol import (
    EmbeddingList,
    EmbeddingRequest,
    RerankList,
    RerankRequest,
    ScoreList,
    ScoreRequest,
)
from shoal.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from shoal.server.responses.answers import DeletedResponse, ResponseObject
from shoal.server.responses.request import ResponsesRequest
from shoal.server.text import Detokenized, Tokenized

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "A field is unknown, missing, of the wrong type or out of range; `param` names it.",
    401: "An API key is required.",
    404: "The model is not served here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    503: "The model is loading, the engine has stopped, or the server is shutting down.",
}


def document() -> Json:
    """The document as plain JSON values."""
    types = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    others = (ResponsesRequest, MessagesRequest, CountTokensRequest, EmbeddingRequest, ScoreRequest, RerankRequest)
    answers = (ChatCompletion, Completion, Tokenized, Detokenized, ErrorResponse)
    further = (ResponseObject, DeletedResponse, MessageObject, TokensCounted, MessagesErrorResponse)
    vectors = (EmbeddingList, ScoreList, RerankList)
    _, components = msgspec.json.schema_components(
        [*types, *others, *answers, *further, *vectors], ref_template=_REF
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal: one replica, OpenAI-compatible", "version": __version__},
        "paths": {
            "/v1/chat/completions": _post("Answer a conversation", ChatRequest, ChatCompletion, streams=True),
            "/v1/completions": _post("Continue a prompt", CompletionRequest, Completion, streams=True),
            "/v1/responses": _post("Answer items", ResponsesRequest, ResponseObject, streams=True),
            "/v1/responses/{response_id}": _stored_response(),
            "/v1/messages": _messages("Answer content blocks", MessagesRequest, MessageObject),
            "/v1/messages/count_tokens": _messages("Count input", CountTokensRequest, TokensCounted, streams=False),
            "/v1/models": _get("The served model"),
            "/v1/models/{model}": _get("The served model, by name", path_parameter="model"),
            "/v1/embeddings": _post("Texts to vectors", EmbeddingRequest, EmbeddingList),
            "/v1/score": _post("Score pairs of texts", ScoreRequest, ScoreList),
            "/v1/rerank": _post("Order documents by relevance", RerankRequest, RerankList),
            "/tokenize": _post("Text or conversation to token ids", TokenizeRequest, Tokenized),
            "/detokenize": _post("Token ids to text", DetokenizeRequest, Detokenized),
            "/health": _get("The process lives", key=False),
            "/ready": _get("Requests are served", key=False, unready=True),
            "/metrics": _get("Prometheus metrics", media="text/plain"),
            "/openapi.json": _get("This document", key=False),
        },
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}


def error_answer(text: str) -> Json:
    return {"description": text, "content": {"application/json": {"schema": _ref(ErrorResponse)}}}


def _post(summary: str, body: type, answer: type, *, streams: bool = False) -> Json:
    content: Json = {"application/json": {"schema": _ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: Json = {"200": {"description": "The answer", "content": content}}
    responses |= {str(status): error_answer(text) for status, text in _ERRORS.items()}
    return {
        "post": {
            "summary": summary,
            "security": [{}, {"key": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
            "responses": responses,
        }
    }


def _messages(summary: str, body: type, answer: type, *, streams: bool = True) -> Json:
    """As `_post`, with errors in Anthropic's shape."""
    made = _post(summary, body, answer, streams=streams)
    for status in _ERRORS:
        content = {"application/json": {"schema": _ref(MessagesErrorResponse)}}
        made["post"]["responses"][str(status)]["content"] = content
    made["post"]["security"].append({"x-api-key": []})
    return made


def _stored_response() -> Json:
    parameter = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}

    def operation(summary: str, answer: type) -> Json:
        content = {"application/json": {"schema": _ref(answer)}}
        return {
            "summary": summary,
            "security": [{}, {"key": []}],
            "parameters": [parameter],
            "responses": {
                "200": {"description": summary, "content": content},
                "401": error_answer(_ERRORS[401]),
                "404": error_answer("No such response is kept here."),
            },
        }

    return {
        "get": operation("A response that this replica has kept", ResponseObject),
        "delete": operation("Forget a response", DeletedResponse),
    }


def _get(
    summary: str,
    *,
    media: str = "application/json",
    key: bool = True,
    unready: bool = False,
    path_parameter: str | None = None,
) -> Json:
    schema: Json = {"type": "object"} if media == "application/json" else {"type": "string"}
    responses: Json = {"200": {"description": summary, "content": {media: {"schema": schema}}}}
    if key:
        responses["401"] = error_answer(_ERRORS[401])
    if unready:
        responses["503"] = {"description": "Not ready, with the reason", "content": {media: {"schema": schema}}}
    operation: Json = {"summary": summary, "responses": responses}
    if key:
        operation["security"] = [{}, {"key": []}]
    if path_parameter:
        operation["parameters"] = [
            {"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
        responses["404"] = error_answer(_ERRORS[404])
    return {"get": operation}
