"""OpenTelemetry traces across gateway and engine: off unless asked for, and free when off.

    client ─traceparent─► gateway span ─traceparent─► engine span
                          (queue, replica, reason,     (queue, prefill, decode as child spans)
                           hit, outcome, attempts)

Configured by the standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like); `pip install 'shoal[otel]'`.
"""

from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.fleet.gateway import RequestRecord
from shoal.fleet.gateway.record import Observers
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class MissingOtel(ValueError):
    """The packages for tracing are not installed."""


def set_up(service: str) -> None:
    """Export spans over OTLP/HTTP from now on, as the environment says. Raises `MissingOtel`."""
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
    """ASGI application around another: a span a request, whose context the inner one sees as `traceparent`."""

    def __init__(self, app: ASGIApp, tracer: "Tracer", name: str) -> None:
        self._app = app
        self._tracer = tracer
        self._name = name
        self._spans: dict[str, Span] = {}
        """By the traceparent that was given on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        propagator = TraceContextTextMapPropagator()
        span = self._tracer.start_span(
            f"{self._name} {scope['path']}", context=propagator.extract(carrier), kind=SpanKind.SERVER
        )
        given: dict[str, str] = {}
        from opentelemetry.trace import set_span_in_context

        propagator.inject(given, context=set_span_in_context(span))
        kept = [(n, v) for n, v in scope["headers"] if n not in (b"traceparent", b"tracestate")]
        kept += [(name.encode(), value.encode()) for name, value in given.items()]
        parent = given.get("traceparent", "")
        self._spans[parent] = span

        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        try:
            await self._app({**scope, "headers": kept}, receive, watched)
        finally:
            self._spans.pop(parent, None)
            span.end()

    # As an observer of the gateway inside.

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        if (span := self._spans.get(record.traceparent)) is not None:
            span.add_event(
                "decision",
                {
                    "shoal.replica": decision.replica,
                    "shoal.reason": decision.reason,
                    "shoal.predicted_hit": decision.predicted_hit,
                    "shoal.predicted_ttft": decision.predicted_ttft,
                },
            )

    def on_leg(self, record: RequestRecord, replica: str, outcome: Outcome) -> None:
        if (span := self._spans.get(record.traceparent)) is not None:
            span.add_event("leg ended", {"shoal.replica": replica, "shoal.outcome": str(outcome)})

    def on_distrust(self, replica: str, trust: float) -> None:
        pass

    def on_finished(self, record: RequestRecord) -> None:
        span = self._spans.get(record.traceparent)
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


def traced(app: ASGIApp, observers: Observers) -> ASGIApp:
    """The gateway with spans around it."""
    from opentelemetry import trace

    around = Traced(app, trace.get_tracer("shoal"), "gateway")
    observers.all.append(around)
    return around
