"""The routes of one replica."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from shoal.http.about import ModelCard, ModelList, Status
from shoal.http.bodies import read_json
from shoal.http.errors import JSON_TYPE, ApiError, error_response
from shoal.http.event_stream import while_connected
from shoal.http.keys import ApiKey
from shoal.server import chat, completions, pooling, text
from shoal.server.context import RequestContext, log_access, request_id_of
from shoal.server.messages import endpoint as messages
from shoal.server.messages.request import CountTokensRequest, MessagesRequest
from shoal.server.openapi import document
from shoal.server.pooling_protocol import EmbeddingRequest, RerankRequest, ScoreRequest
from shoal.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from shoal.server.responses import endpoint as responses
from shoal.server.responses.answers import DeletedResponse
from shoal.server.responses.request import ResponsesRequest
from shoal.server.state import ServerState

T = TypeVar("T", bound=msgspec.Struct)
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def json_response(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON_TYPE)


class Routes:
    """The endpoints, bound to one server's state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._openapi = msgspec.json.encode(document())

    async def _body(self, request: Request, kind: type[T]) -> T:
        options = self._state.options
        return await read_json(request, kind, limit=options.max_body_bytes, seconds=options.body_seconds)

    async def chat(self, request: Request) -> ASGIApp:
        body = await self._body(request, ChatRequest)
        self._state.check_model(body.model)
        answer = chat.respond(self._state.engine(), body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def completions(self, request: Request) -> ASGIApp:
        body = await self._body(request, CompletionRequest)
        self._state.check_model(body.model)
        answer = completions.respond(self._state.engine(), body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def responses(self, request: Request) -> ASGIApp:
        body = await self._body(request, ResponsesRequest)
        self._state.check_model(body.model)
        answer = responses.respond(self._state.engine(), self._state.responses, body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def response(self, request: Request) -> ASGIApp:
        return json_response(self._state.responses.get(request.path_params["response_id"]).response)

    async def delete_response(self, request: Request) -> ASGIApp:
        response_id = request.path_params["response_id"]
        self._state.responses.delete(response_id)
        return json_response(DeletedResponse(response_id))

    async def messages(self, request: Request) -> ASGIApp:
        body = await self._body(request, MessagesRequest)
        self._state.check_model(body.model)
        answer = messages.respond(self._state.engine(), body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def count_tokens(self, request: Request) -> ASGIApp:
        body = await self._body(request, CountTokensRequest)
        self._state.check_model(body.model)
        return json_response(await asyncio.to_thread(messages.count_tokens, self._state.engine().frontend, body))

    async def embeddings(self, request: Request) -> ASGIApp:
        body = await self._body(request, EmbeddingRequest)
        self._state.check_model(body.model)
        return await while_connected(request.receive, pooling.embed(self._state.pooling(), body))

    async def score(self, request: Request) -> ASGIApp:
        body = await self._body(request, ScoreRequest)
        self._state.check_model(body.model)
        answer = pooling.score(self._state.pooling(), body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def rerank(self, request: Request) -> ASGIApp:
        body = await self._body(request, RerankRequest)
        self._state.check_model(body.model)
        answer = pooling.rerank(self._state.pooling(), body, request_id_of(request.scope))
        return await while_connected(request.receive, answer)

    async def tokenize(self, request: Request) -> ASGIApp:
        body = await self._body(request, TokenizeRequest)
        self._state.check_model(body.model)
        return json_response(await asyncio.to_thread(text.tokenize, self._state.engine().frontend, body))

    async def detokenize(self, request: Request) -> ASGIApp:
        body = await self._body(request, DetokenizeRequest)
        self._state.check_model(body.model)
        return json_response(await asyncio.to_thread(text.detokenize, self._state.engine().frontend, body))

    async def models(self, request: Request) -> ASGIApp:
        return json_response(ModelList([self._card(name) for name in (*self._state.names, *self._state.adapters)]))

    async def model(self, request: Request) -> ASGIApp:
        name = request.path_params["model"]
        self._state.check_model(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> ModelCard:
        limit = self._state.max_model_len
        parent = self._state.model_name if name in self._state.adapters else None
        size = self._state.max_prompt_bytes
        return ModelCard(name, self._state.created, max_model_len=limit, max_prompt_bytes=size, parent=parent)

    async def health(self, request: Request) -> ASGIApp:
        return json_response(Status("ok"))

    async def ready(self, request: Request) -> ASGIApp:
        reason = self._state.not_ready
        return json_response(Status("ready")) if reason is None else json_response(Status("not_ready", reason), 503)

    async def metrics(self, request: Request) -> ASGIApp:
        return Response(self._state.metrics.text(), media_type=_PROMETHEUS)

    async def openapi(self, request: Request) -> ASGIApp:
        return Response(self._openapi, media_type=JSON_TYPE)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not allowed here; use {headers.get('Allow', 'another method')}"
        code = "method_not_allowed"
    elif error.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"there is nothing at {request.url.path[:200]}; see /openapi.json", "not_found"
    else:
        message, code = HTTPStatus(error.status_code).phrase, "http_error"
    return error_response(ApiError(error.status_code, message, code=code, headers=headers), request.scope)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])]


def build_app(state: ServerState, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application; `state.attach(engine)` may come later, until then it answers 503.

    `pages` are further routes, such as a dashboard's.
    """
    routes = Routes(state)
    table = [
        Route("/v1/chat/completions", routes.chat, methods=["POST"]),
        Route("/v1/completions", routes.completions, methods=["POST"]),
        Route("/v1/responses", routes.responses, methods=["POST"]),
        Route("/v1/responses/{response_id}", routes.response, methods=["GET"]),
        Route("/v1/responses/{response_id}", routes.delete_response, methods=["DELETE"]),
        Route("/v1/messages", routes.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", routes.count_tokens, methods=["POST"]),
        Route("/v1/models", routes.models, methods=["GET"]),
        Route("/v1/models/{model:path}", routes.model, methods=["GET"]),
        Route("/v1/embeddings", routes.embeddings, methods=["POST"]),
        *(Route(path, routes.score, methods=["POST"]) for path in ("/v1/score", "/score")),
        *(Route(path, routes.rerank, methods=["POST"]) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
        Route("/tokenize", routes.tokenize, methods=["POST"]),
        Route("/detokenize", routes.detokenize, methods=["POST"]),
        Route("/health", routes.health, methods=["GET"]),
        Route("/ready", routes.ready, methods=["GET"]),
        Route("/metrics", routes.metrics, methods=["GET"]),
        Route("/openapi.json", routes.openapi, methods=["GET"]),
    ]
    further = [route.path for route in pages if isinstance(route, Route)]
    context = Middleware(
        RequestContext,
        metrics=state.metrics,
        api_key=ApiKey(state.options.api_key) if state.options.api_key else None,
        live=state.live,
        access=log_access if state.options.access_log else None,
        heartbeat_seconds=state.options.heartbeat_seconds,
        known_paths=frozenset([route.path for route in table] + further),
    )
    app = Starlette(
        routes=[*table, *pages],
        # Outermost, since a browser's preflight request has no key.
        middleware=[*_cors(state.options.cors_origins), context],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
    )
    app.router.redirect_slashes = False
    return app
