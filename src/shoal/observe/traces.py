"""OpenTelemetry traces across gateway and engine: off unless asked for, and free when off.

    client ─traceparent─► gateway span ─traceparent─► engine span ─► queue · prefill · decode
                          (decisions, legs, hits,     (tokens, finish)
                           outcome, attempts)

Exported over OTLP/HTTP as the standard variables say (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like). Spans hold no
prompt and no answer.
"""

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.engine.outputs import Observer as EngineObserver
from shoal.engine.outputs import RequestTimings
from shoal.fleet.gateway import RequestRecord
from shoal.fleet.gateway.record import Observer, Observers
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
_MAX_SPANS = 10_000
"""Spans remembered at a time at most."""


class MissingOtel(ValueError):
    """The packages for tracing are not installed."""


def set_up(service: str) -> None:
    """Export spans from now on, as the environment says. Raises `MissingOtel`."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingOtel(f"tracing needs more packages: pip install 'shoal[otel]' ({error})") from None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def shut_down() -> None:
    """Send what is left."""
    from opentelemetry import trace

    provider: Any = trace.get_tracer_provider()
    if hasattr(provider, "shutdown"):
        provider.shutdown()


class Traced:
    """ASGI application around another: a span per request, whose context the inner one sees as `traceparent`."""

    def __init__(self, app: ASGIApp, tracer: "Tracer", name: str, live: "LiveSpans") -> None:
        self._app = app
        self._tracer = tracer
        self._name = name
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            f"{self._name} {scope['path']}", context=propagator.extract(carrier), kind=SpanKind.SERVER
        )
        own: dict[str, str] = {}
        propagator.inject(own, context=set_span_in_context(span))
        headers = [(n, v) for n, v in scope["headers"] if n not in (b"traceparent", b"tracestate")]
        headers += [(name.encode(), value.encode()) for name, value in own.items()]
        names = (own.get("traceparent", ""), carrier.get("x-request-id", ""))
        self._live.add(span, names)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        try:
            await self._app({**scope, "headers": headers}, receive, watched)
        finally:
            self._live.remove(names)
            span.end()


class LiveSpans:
    """Spans by the names under which others will speak of them. Thread-safe."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, Span] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, span: "Span", names: tuple[str, ...]) -> None:
        with self._lock:
            for name in filter(None, names):
                self._spans[name] = span
            while len(self._spans) > _MAX_SPANS:
                self._spans.popitem(last=False)

    def remove(self, names: tuple[str, ...]) -> None:
        with self._lock:
            for name in names:
                self._spans.pop(name, None)

    def get(self, name: str) -> "Span | None":
        with self._lock:
            return self._spans.get(name)


class GatewayTraces(Observer):
    """What the gateway tells of a request becomes part of its span."""

    def __init__(self, live: LiveSpans) -> None:
        self._live = live

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        if (span := self._live.get(record.traceparent)) is not None:
            span.add_event(
                "decision",
                {
                    "shoal.replica": decision.replica,
                    "shoal.reason": decision.reason,
                    "shoal.predicted_hit": decision.predicted_hit,
                    "shoal.predicted_ttft": decision.predicted_ttft,
                },
            )

    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
        if (span := self._live.get(record.traceparent)) is not None:
            span.add_event("leg ended", {"shoal.replica": replica, "shoal.outcome": str(outcome)})

    def on_finished(self, record: RequestRecord) -> None:
        span = self._live.get(record.traceparent)
        if span is None:
            return
        span.set_attributes(
            {
                "gen_ai.request.model": record.model,
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.completion_tokens,
                "shoal.request_id": record.request_id,
                "shoal.pool": record.pool,
                "shoal.replica": record.replica,
                "shoal.attempts": record.attempts,
                "shoal.continued": record.continued,
                "shoal.outcome": str(record.outcome or "refused"),
            }
        )
        for name, at in (("shoal.queue_seconds", record.leased), ("shoal.ttft_seconds", record.first_token)):
            if at is not None:
                span.set_attribute(name, at - record.arrived)


def traced(gateway: ASGIApp, observers: Observers) -> ASGIApp:
    """The gateway with spans around it."""
    from opentelemetry import trace

    live = LiveSpans()
    observers.all.append(GatewayTraces(live))
    return Traced(gateway, trace.get_tracer("shoal"), "gateway", live)


class EngineTraces(EngineObserver):
    """A replica's side: `around` its application, `observer` of its engine."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer("shoal")
        self._live = LiveSpans()
        self.observer = self

    def around(self, app: ASGIApp) -> ASGIApp:
        return Traced(app, self._tracer, "engine", self._live)

    def on_finished(self, timings: RequestTimings) -> None:
        """From the engine's thread: its request id is the client's with a suffix."""
        span = self._live.get(timings.request_id.rpartition("-")[0])
        if span is None:
            return
        from opentelemetry.trace import set_span_in_context

        within = set_span_in_context(span)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": timings.prompt_tokens,
                "gen_ai.usage.output_tokens": timings.generated_tokens,
                "gen_ai.response.finish_reasons": (timings.finish_reason,),
                "shoal.cached_tokens": timings.cached_tokens,
            }
        )
        self._part("queue", within, timings.arrival, timings.first_scheduled)
        self._part("prefill", within, timings.first_scheduled, timings.first_token)
        self._part("decode", within, timings.first_token, timings.finish)

    def _part(self, name: str, within: "Context", start: float | None, end: float | None) -> None:
        if start is None or end is None:
            return
        # The engine's clock is monotonic, a span's is that of the wall.
        offset = time.time_ns() - int(time.monotonic() * 1e9)
        part = self._tracer.start_span(name, context=within, start_time=offset + int(start * 1e9))
        part.end(offset + int(end * 1e9))
