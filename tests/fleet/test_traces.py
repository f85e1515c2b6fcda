"""Traces: one trace from client through gateway to engine, with the engine's parts in it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2ekit import eventually
from fleet_kit import fleet_process

pytest.importorskip("opentelemetry.sdk", reason="needs pip install 'shoal[otel]'")


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP collector: its address, and the spans that it was sent as (service, span)."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            for group in ExportTraceServiceRequest.FromString(data).resource_spans:
                service = next(a.value.string_value for a in group.resource.attributes if a.key == "service.name")
                spans.extend((service, span) for scope in group.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def test_one_trace_from_client_to_engine(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text(
        f"pools: [{{name: tiny, model: {tiny_folder}, served_name: tiny, options: {{num_blocks: 50}}}}]\n"
        "tracing: true\n"
    )
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with fleet_process("--config", str(config), home=tmp_path) as served:
            body = {"model": "tiny", "prompt": "secret words", "max_tokens": 5, "ignore_eos": True}
            headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
            answer = httpx.post(
                f"{served.url}/v1/completions", json=body, headers=headers, trust_env=False, timeout=60
            )
            assert answer.status_code == 200
            mine = lambda: {s.name: (service, s) for service, s in spans if s.trace_id.hex() == trace_id}  # noqa: E731
            eventually(lambda: len(mine()) >= 5, "all spans are exported", 20)
        found = mine()
    (gateway_service, gateway), (engine_service, engine) = (
        found["gateway /v1/completions"],
        found["engine /v1/completions"],
    )
    assert (gateway_service, engine_service) == ("shoal-gateway", "shoal-engine")
    assert gateway.parent_span_id.hex() == "b7ad6b7169203331"
    assert engine.parent_span_id == gateway.span_id
    told = {a.key: a.value for a in gateway.attributes}
    assert told["shoal.replica"].string_value == "tiny-0"
    assert told["shoal.outcome"].string_value == "ok"
    assert told["gen_ai.usage.output_tokens"].int_value == 5
    assert [event.name for event in gateway.events] == ["decision", "leg ended"]
    parts = [found[name][1] for name in ("queue", "prefill", "decode")]
    assert all(part.parent_span_id == engine.span_id for part in parts)
    assert all(p.start_time_unix_nano <= p.end_time_unix_nano for p in parts)
    assert parts[1].start_time_unix_nano <= parts[2].start_time_unix_nano
    assert b"secret words" not in b"".join(span.SerializeToString() for _, span in spans)


def test_tracing_is_off_by_default() -> None:
    from shoal.fleet.config_file import parse_config
    from shoal.fleet.gateway import Gateway
    from shoal.fleet.service import FleetService
    from shoal.observe.fleet import FleetEquipment

    async def made() -> bool:
        config = parse_config({"pools": [{"name": "p", "model": "m"}]})
        service = FleetService(config, cores=1)
        gateway = Gateway(service.registry)
        return FleetEquipment()(service, gateway) is gateway

    assert asyncio.run(made())
