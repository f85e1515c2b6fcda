"""What surrounds every request: its id, the API key, the access log, metrics, and the last net for exceptions."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.http.errors import ApiError, error_response, internal_error, is_messages_path, shutting_down
from shoal.http.event_stream import HEARTBEAT_STATE, ClientDisconnected
from shoal.http.keys import ApiKey, invalid_key
from shoal.http.request_ids import CLIENT_CLOSED
from shoal.http.request_ids import request_id as request_id_for
from shoal.server.metrics import ServerMetrics

log = logging.getLogger("shoal.server")
access_log = logging.getLogger("shoal.access")

_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class AccessRecord(msgspec.Struct, frozen=True):
    """One line of the JSON access log. Never holds a prompt, an answer or a key."""

    time: float
    request_id: str
    client: str
    method: str
    path: str
    status: int
    seconds: float
    bytes_sent: int


def request_id_of(scope: Scope) -> str:
    """The id of this request for the engine: the client's own (or ours), made unique among live requests."""
    return f"{scope['state']['request_id']}-{uuid.uuid4().hex[:8]}"


class RequestContext:
    """ASGI middleware, outermost: nothing an inner layer raises gets past it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: ServerMetrics,
        api_key: ApiKey | None,
        access: Callable[[AccessRecord], None] | None,
        live: "set[asyncio.Task[Any]]",
        known_paths: frozenset[str],
        heartbeat_seconds: float,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._api_key = api_key
        self._access = access
        self._live = live
        self._known = known_paths
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = request_id_for(given)
        state = scope.setdefault("state", {})
        state["request_id"], state[HEARTBEAT_STATE] = request_id, self._heartbeat_seconds
        started, status, sent = time.monotonic(), 0, 0

        async def tagged(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["x-request-id"] = request_id
                if is_messages_path(scope["path"]):
                    # Where Anthropic's clients look for it.
                    answered["request-id"] = request_id
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        self._metrics.http_in_flight.inc()
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            self._authorize(scope["path"], headers)
            await self._app(scope, receive, tagged)
        except ApiError as error:
            await error_response(error, scope)(scope, receive, tagged)
        except ClientDisconnected:
            status = CLIENT_CLOSED
        except asyncio.CancelledError:
            # Only the shutdown cancels requests, when their time to end is over (`ServerState.cancel_requests`).
            if not status:
                await error_response(shutting_down(), scope)(scope, receive, tagged)
        except Exception:
            log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            if not status:
                await error_response(internal_error(request_id), scope)(scope, receive, tagged)
        finally:
            self._live.discard(task)
            self._metrics.http_in_flight.dec()
            self._record(scope, request_id, status or CLIENT_CLOSED, time.monotonic() - started, sent)

    def _authorize(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self._api_key is None or path in _OPEN_PATHS:
            return
        if self._api_key.accepts(headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")):
            return
        raise invalid_key()

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float, sent: int) -> None:
        path = scope["path"] if scope["path"] in self._known else "other"
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        self._metrics.on_http(path, method, status)
        if self._access is None:
            return
        client = scope.get("client")
        self._access(
            AccessRecord(
                time=time.time(),
                request_id=request_id,
                client=f"{client[0]}:{client[1]}" if client else "",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(seconds, 6),
                bytes_sent=sent,
            )
        )


def log_access(record: AccessRecord) -> None:
    access_log.info("%s", msgspec.json.encode(record).decode())
