"""The gateway: HTTP in, bytes out. A bare ASGI application, as every layer between costs on every request."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from shoal.fleet.gateway.apis import APIS
from shoal.fleet.gateway.bodies import Bodies
from shoal.fleet.gateway.body import Parsed, parse_off_loop, route_request
from shoal.fleet.gateway.config import GatewayConfig
from shoal.fleet.gateway.context import AdmittedRequest, Services
from shoal.fleet.gateway.dispatch import Dispatcher
from shoal.fleet.gateway.exchange import Exchange
from shoal.fleet.gateway.head import RequestHead
from shoal.fleet.gateway.keys import Client, Clients
from shoal.fleet.gateway.lengths import check_fits
from shoal.fleet.gateway.logs import AccessLog, PromptLog
from shoal.fleet.gateway.pages import Pages
from shoal.fleet.gateway.record import Observers, RequestRecord
from shoal.fleet.gateway.split import Splitter
from shoal.fleet.gateway.stored import StoredResponses
from shoal.fleet.gateway.stored_requests import answer_stored, response_id_of
from shoal.fleet.gateway.tokens import TokenSource
from shoal.fleet.registry import Registry
from shoal.fleet.shared import SharedState
from shoal.http.errors import (
    JSON_TYPE,
    ApiError,
    error_json,
    internal_error,
    is_messages_path,
    messages_error_json,
    shutting_down,
)
from shoal.http.event_stream import ClientDisconnected
from shoal.http.request_ids import CLIENT_CLOSED, request_id
from shoal.http.transport import ON_LOST
from shoal.policy.admission import Admission
from shoal.policy.estimates import TokenEstimator
from shoal.policy.outcomes import Outcome
from shoal.policy.retry import RetryPolicy
from shoal.policy.routing import Router, build_router
from shoal.policy.split import SplitConfig

log = logging.getLogger("shoal.fleet")


class Gateway:
    """ASGI application over a registry. Made in the event loop that serves it."""

    def __init__(
        self,
        registry: Registry,
        config: GatewayConfig | None = None,
        *,
        router: Router | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.config = config or GatewayConfig()
        self.registry = registry
        self.router = router or build_router(self.config.router)
        self.admission = admission or Admission(self.config.admission, self.config.down_seconds)
        self.observers = Observers()
        if self.config.access_log:
            self.observers.all.append(AccessLog())
        self._prompts = (
            PromptLog(self.config.prompt_log, self.config.redact) if self.config.prompt_log is not None else None
        )
        self.pages = Pages(self)
        self._estimator = TokenEstimator()
        self.draining = False
        self._clients = Clients(self.config.keys)
        self.tokens = TokenSource(registry)
        self.splitter = Splitter(
            registry,
            self.router,
            self.observers,
            SplitConfig(
                threshold_tokens=self.config.split_threshold_tokens, prefill_seconds=self.config.prefill_seconds
            ),
        )
        self._dispatcher = Dispatcher(registry, self.router, self.admission)
        self._live: dict[asyncio.Task[Any], Exchange | None] = {}
        self._gone: set[asyncio.Task[Any]] = set()
        self._bodies = Bodies(self.config, registry.clock)
        self._swept = (self.config.reader_seconds, self.config.body_seconds, self.config.heartbeat_seconds)
        self._sweeper: asyncio.Task[None] | None = None
        self._stored = StoredResponses()
        self._services = Services(
            registry,
            self._dispatcher,
            self.splitter,
            RetryPolicy(self.config.retry_config()),
            self.config,
            self.observers,
            self._stored,
        )

    @property
    def live(self) -> int:
        """Requests being answered."""
        return len(self._live)

    def share(self, shared: SharedState) -> None:
        """Tell other gateways of every decision. Start and stop it yourself."""
        self._dispatcher.tell(shared.noted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"
        record = self._record(scope)
        task = asyncio.current_task()
        assert task is not None
        self._live[task] = None
        try:
            await self._answer(scope, receive, send, record, task)
        except ApiError as error:
            await self._send_error(send, record, error)
        except ClientDisconnected:
            record.status = CLIENT_CLOSED
            record.outcome = Outcome.CANCELLED
        except asyncio.CancelledError:
            await self._on_cancelled(send, record, task)
        except Exception:
            log.exception("request %s failed: %s %s", record.request_id, record.method, record.path)
            if not record.status:
                await self._send_error(send, record, internal_error(record.request_id))
        finally:
            self._live.pop(task, None)
            self._gone.discard(task)
            record.ended = self.registry.clock()
            self.observers.on_finished(record)
            self._dispatcher.pump()

    def _record(self, scope: Scope) -> RequestRecord:
        given = traceparent = ""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given = value.decode("latin-1")
            elif name == b"traceparent":
                traceparent = value.decode("latin-1")
        client = scope.get("client")
        return RequestRecord(
            request_id(given),
            scope["path"],
            scope["method"],
            self.registry.clock(),
            client=client[0] if client else "",
            traceparent=traceparent,
        )

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, record: RequestRecord, task: "asyncio.Task[Any]"
    ) -> None:
        api = APIS.get(scope["path"])
        if api is None:
            if (response_id := response_id_of(scope["path"])) is not None:
                await self._answer_stored(scope, send, record, response_id)
                return
            await self.pages.answer(scope, receive, send, record, self._clients)
            return
        if scope["method"] != "POST":
            raise ApiError(
                405,
                f"{scope['method']} is not allowed here; use POST",
                code="method_not_allowed",
                headers={"Allow": "POST"},
            )
        head = RequestHead.read(scope["headers"], record.request_id)
        client = self._clients.identify(head.authorization)
        record.key = client.name
        client.demand("generate")
        if self.draining:
            raise shutting_down()
        body = await self._bodies.read(receive, head, task)
        parsed = await parse_off_loop(api.endpoint, body)
        if self._prompts is not None:
            self._prompts.add(record, body)
        exchange = await self._exchange(parsed, client, record, head, send)
        charged = exchange.charge
        client.charge(charged, self.registry.clock())
        self._live[task] = exchange
        unwatch = self._watched(scope, receive, task)
        try:
            await exchange.run()
        finally:
            unwatch()
            used = exchange.used
            client.settle(charged, used.total)
            if exchange.meter.usage is not None:
                self._estimator.observe(parsed.ask.model, parsed.prompt_bytes, used.prompt_tokens, used.output)

    async def _answer_stored(self, scope: Scope, send: Send, record: RequestRecord, response_id: str) -> None:
        head = RequestHead.read(scope["headers"], record.request_id)
        client = self._clients.identify(head.authorization)
        record.key = client.name
        client.demand("generate")
        await answer_stored(
            scope,
            send,
            record,
            response_id,
            stored=self._stored,
            registry=self.registry,
            config=self.config,
        )

    async def _exchange(
        self,
        parsed: Parsed,
        client: Client,
        record: RequestRecord,
        head: RequestHead,
        send: Send,
    ) -> Exchange:
        model = parsed.ask.model
        known = self.registry.serves(model)
        if not client.may_use(model) or not known:
            # One answer for both: a key must not learn what else is here.
            raise ApiError(
                404,
                f"model {model[:200]!r} is not served here, or not to this key",
                param="model",
                code="model_not_found",
            )
        await check_fits(parsed, self.registry)
        record.model, record.streamed = model, parsed.streams
        route = route_request(
            parsed,
            record.request_id,
            self.router,
            self._estimator,
            head.session,
            client.name,
            client.priority,
            adapter=self.registry.base_of(model) is not None,
        )
        self._stored.pin(parsed, client.name, route, self.registry)
        if parsed.api.chunked and self.config.tokenize:
            source = self.router.token_source(route, self.registry.last_states)
            if source is not None:
                await self.tokens.fill(parsed, route, source)
        self._dispatcher.admit(route)
        return Exchange(self._services, AdmittedRequest(record, parsed, route, head.forwarded, send))

    def _watched(self, scope: Scope, receive: Receive, task: "asyncio.Task[Any]") -> Callable[[], object]:
        """End the request if its client leaves, at whatever stage it is; what is returned ends that."""
        on_lost = (scope.get("extensions") or {}).get(ON_LOST)
        if on_lost is None:
            # Another server than ours: somebody has to wait for it.
            return asyncio.ensure_future(self._watch(receive, task)).cancel
        on_lost(partial(self._left, task))
        return partial(on_lost, None)

    async def _watch(self, receive: Receive, task: "asyncio.Task[Any]") -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left(task)

    def _left(self, task: "asyncio.Task[Any]") -> None:
        if task in self._live:
            self._gone.add(task)
            task.cancel()

    async def _on_cancelled(self, send: Send, record: RequestRecord, task: "asyncio.Task[Any]") -> None:
        task.uncancel()
        exchange = self._live.get(task)
        if exchange is not None:
            exchange.reply.hush()
        if task in self._gone:
            record.status = record.status or CLIENT_CLOSED
            record.outcome = Outcome.CANCELLED
        elif exchange is not None and exchange.reply.started:
            await exchange.reply.fail(shutting_down().body)
        else:
            await self._send_error(send, record, shutting_down())

    async def _send_error(self, send: Send, record: RequestRecord, error: ApiError) -> None:
        record.status = error.status
        body = error_json(error.body)
        if is_messages_path(record.path):
            body = messages_error_json(error.status, error.body.message, record.request_id)
        headers = [
            (b"content-type", JSON_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", record.request_id.encode()),
        ]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in error.headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if record.method == "HEAD" else body})

    # Life.

    def start(self) -> None:
        """Begin to watch for clients that send or take nothing."""
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, *(seconds / 4 for seconds in self._swept if seconds)))
            now = self.registry.clock()
            self._bodies.sweep(now)
            for task, exchange in list(self._live.items()):
                if exchange is None:
                    continue
                exchange.beat(now)
                since = exchange.reply.sending_since
                if since is not None and now - since > self.config.reader_seconds:
                    self._gone.add(task)
                    task.cancel()

    async def drain(self, seconds: float) -> int:
        """Take nothing new and let what runs end within `seconds`; then end the rest. How many were cut short."""
        self.draining = True
        deadline = self.registry.clock() + seconds
        while self._live and self.registry.clock() < deadline:
            await asyncio.wait(self._live, timeout=max(0.0, deadline - self.registry.clock()))
        cut = list(self._live)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=5.0)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self.splitter.close()
        if self._prompts is not None:
            await asyncio.to_thread(self._prompts.close)
            self._prompts = None
        self._dispatcher.close()
        return len(cut)
