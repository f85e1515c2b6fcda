"""`shoal ui`: the planner page on a loopback address, with the search behind it as JSON.

A small server of the standard library: static files, `GET /api/catalog` and `POST /api/plan`. It answers requests
that name a loopback host only, so that no other site can reach it through a visitor's browser.
"""

import functools
import ipaddress
import json
import webbrowser
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import typer

from shoal.specs.errors import SpecError

FILES: Mapping[str, str] = MappingProxyType(
    {
        "index.html": "text/html; charset=utf-8",
        "style.css": "text/css; charset=utf-8",
        "charts.js": "text/javascript; charset=utf-8",
        "app.js": "text/javascript; charset=utf-8",
    }
)
MAX_BODY_BYTES = 64 * 1024
READ_SECONDS = 30
Answer = Callable[[bytes, tuple[Path, ...]], dict[str, object]]
"""What a POST is answered by: (JSON body, catalogue files) to JSON."""
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8765,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    catalog: Annotated[list[Path] | None, typer.Option(help="A catalogue file of your own; repeatable.")] = None,
) -> None:
    """Serve the planner page until Ctrl-C."""
    server = make_server(host, port, tuple(catalog or ()))
    url = f"http://{host}:{server.server_port}/"
    typer.echo(f"Planner: {url}  (Ctrl-C stops)")
    if open_browser:
        webbrowser.open(url)
    try:
        server.serve_forever()
    finally:
        server.server_close()


def make_server(host: str, port: int, catalogs: tuple[Path, ...] = ()) -> ThreadingHTTPServer:
    """A server bound to a loopback address, not yet serving.

    Raises `SpecError` for an address that others could reach, or a port in use.
    """
    if not _loopback(host):
        raise SpecError("host", host, "a loopback address such as 127.0.0.1: the page has no log-in")
    handler = type("PlannerHandler", (Handler,), {"catalogs": catalogs})
    try:
        return ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise SpecError("port", port, f"a free port, or 0 for any ({error.strerror})") from None


def _answers() -> Mapping[str, Answer]:
    from shoal.cli.page_answers import plan_answer, question_answer
    from shoal.cli.page_calculators import calculator_answer

    return {"/api/plan": plan_answer, "/api/calc": calculator_answer, "/api/question": question_answer}


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Handler(BaseHTTPRequestHandler):
    """One request."""

    catalogs: tuple[Path, ...] = ()
    timeout = READ_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._welcome():
            return
        name = self.path.split("?")[0].lstrip("/") or "index.html"
        if name == "api/catalog":
            self._json(HTTPStatus.OK, catalog_data(self.catalogs))
        elif name in FILES:
            self._send(HTTPStatus.OK, (files("shoal.plan") / "ui" / name).read_bytes(), FILES[name])
        else:
            self._json(HTTPStatus.NOT_FOUND, {"error": f"there is no {self.path}"})

    def do_POST(self) -> None:
        if not self._welcome():
            return
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not length.isdigit():
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a JSON body with its length is expected")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BODY_BYTES:,} bytes are read")
        elif (answer := _answers().get(self.path)) is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
        else:
            self._answer(answer, self.rfile.read(int(length)))

    def _answer(self, answer: Answer, body: bytes) -> None:
        from shoal.cli.page_answers import problems_data

        try:
            self._json(HTTPStatus.OK, answer(body, self.catalogs))
        except (SpecError, msgspec.DecodeError) as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error), "problems": problems_data(error)})

    def _welcome(self) -> bool:
        """Whether the request names a loopback host: a foreign page whose name resolves here does not."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if _loopback(host):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "only requests to a loopback address are answered")
        return False

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The body was not read, so the connection cannot carry another request.
        self.close_connection = True
        self._json(status, {"error": message})

    def _json(self, status: HTTPStatus, content: object) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet: the page is for one person who sees what it does."""


@functools.lru_cache(maxsize=4)
def catalog_data(catalogs: tuple[Path, ...]) -> dict[str, object]:
    """Models and accelerators, as the calculators fill their fields from them."""
    from shoal.plan.kv import kv_bytes_per_token
    from shoal.specs.catalog import load_catalog
    from shoal.specs.catalog.models import catalog_model, known_models
    from shoal.specs.tensors import parameter_counts

    models = []
    for name in known_models(catalogs):
        spec = catalog_model(name, catalogs)
        token = kv_bytes_per_token(spec)
        models.append({"name": name, "parameters": parameter_counts(spec).total, "kv_bytes_per_token": token})
    devices = [
        {
            "name": accelerator.name, "memory_bytes": accelerator.memory_bytes, "bandwidth": accelerator.bandwidth,
            "price_owned": accelerator.price_owned, "price_rented": accelerator.price_rented,
        }
        for accelerator in load_catalog(catalogs).accelerators.values()
    ]  # fmt: skip
    return {"models": models, "accelerators": devices}
