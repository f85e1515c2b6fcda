"""Everything a gateway answers itself: models, health, and pages that others add (metrics, dashboard)."""

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from shoal.fleet.gateway.config import KeyScope
from shoal.fleet.gateway.head import RequestHead
from shoal.fleet.gateway.keys import Client, Clients
from shoal.fleet.gateway.openapi import fleet_document
from shoal.fleet.gateway.record import RequestRecord
from shoal.fleet.registry import Registry
from shoal.http.about import ModelCard, ModelList, Status
from shoal.http.errors import JSON_TYPE, ApiError


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(fleet_document())


class Page(msgspec.Struct, frozen=True):
    """An answer in one piece."""

    body: bytes
    content_type: str = JSON_TYPE
    status: int = 200


PageMaker = Callable[[Scope], Awaitable[Page]]


class Served(Protocol):
    """What the pages tell of a gateway."""

    draining: bool

    @property
    def registry(self) -> Registry: ...


class Pages:
    """Routes by exact path."""

    def __init__(self, gateway: Served) -> None:
        self._gateway = gateway
        self._pages: dict[str, PageMaker] = {}
        self._scopes: dict[str, KeyScope] = {}
        self.add("/health", self._health)
        self.add("/ready", self._ready)
        self.add("/openapi.json", self._openapi)

    def add(self, path: str, page: PageMaker, *, scope: KeyScope | None = None) -> None:
        """Serve `page` for GET on `path`, to everybody or, where there are keys, to those with this scope."""
        self._pages[path] = page
        if scope is not None:
            self._scopes[path] = scope

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, record: RequestRecord, clients: Clients
    ) -> None:
        path: str = scope["path"]
        models = path == "/v1/models" or path.startswith("/v1/models/")
        page = self._pages.get(path)
        if page is None and not models:
            raise ApiError(404, f"there is nothing at {path[:200]}", code="not_found")
        if scope["method"] not in ("GET", "HEAD"):
            raise ApiError(
                405,
                f"{scope['method'][:20]} is not allowed here; use GET",
                code="method_not_allowed",
                headers={"Allow": "GET, HEAD"},
            )
        authorization = RequestHead.read(scope["headers"], record.request_id).authorization
        made: Page
        if models:
            made = self._models(path, clients.identify(authorization))
        else:
            assert page is not None
            if (needed := self._scopes.get(path)) is not None:
                clients.identify(authorization).demand(needed)
            made = await page(scope)
        record.status = made.status
        headers = [
            (b"content-type", made.content_type.encode()),
            (b"content-length", b"%d" % len(made.body)),
            (b"x-request-id", record.request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": made.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else made.body
        record.bytes_sent = len(body)
        await send({"type": "http.response.body", "body": body})

    def _models(self, path: str, client: Client) -> Page:
        registry = self._gateway.registry
        cards = []
        for model in registry.models():
            if client.may_use(model):
                lengths = [r.handle.max_model_len for r in registry.replicas if model in r.handle.models]
                length = min((n for n in lengths if n), default=None)
                cards.append(ModelCard(model, max_model_len=length, parent=registry.base_of(model)))
        if path == "/v1/models":
            return Page(msgspec.json.encode(ModelList(cards)))
        wanted = path.removeprefix("/v1/models/")
        card = next((card for card in cards if card.id == wanted), None)
        if card is None:
            raise ApiError(404, f"model {wanted[:200]!r} is not served here", param="model", code="model_not_found")
        return Page(msgspec.json.encode(card))

    async def _openapi(self, scope: Scope) -> Page:
        return Page(_document())

    async def _health(self, scope: Scope) -> Page:
        return Page(msgspec.json.encode(Status("ok")))

    async def _ready(self, scope: Scope) -> Page:
        gateway = self._gateway
        reason = None
        if gateway.draining:
            reason = "the gateway is shutting down"
        elif not any(r.state.serving for r in gateway.registry.replicas):
            reason = "no replica is available"
        if reason is not None:
            return Page(msgspec.json.encode(Status("not_ready", reason)), status=503)
        return Page(msgspec.json.encode(Status("ready")))
