"""A client that leaves ends its request, at whatever stage; a shutdown ends it with an error."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from serverkit import Served, eventually

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
COMPLETE: dict[str, Any] = {"model": "script", "prompt": "Hi", "max_tokens": 500}


def post(served: Served, body: dict[str, Any]) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    data = json.dumps(body).encode()
    sock.sendall(HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", ["Hi", ["Hi", "Ho", "Hu"]])
def test_leaving_before_the_first_byte(served: Served, stream: bool, prompts: Any) -> None:
    served.engine.hold_first = True
    wanted = 1 if isinstance(prompts, str) else len(prompts)
    with post(served, {**COMPLETE, "prompt": prompts, "stream": stream}):
        eventually(lambda: len(served.engine.live) == wanted, "the engine works")
    eventually(lambda: not served.engine.live, "the request is aborted")


def test_leaving_within_a_stream(served: Served) -> None:
    served.engine.answer = "x" * 400
    served.engine.pause = 0.01
    with post(served, {**COMPLETE, "stream": True}) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert served.engine.live
    eventually(lambda: not served.engine.live, "the request is aborted")


def test_leaving_within_a_whole_answer(served: Served) -> None:
    served.engine.answer = "x" * 400
    served.engine.pause = 0.01
    with post(served, COMPLETE):
        eventually(lambda: bool(served.engine.live), "the engine works")
    eventually(lambda: not served.engine.live, "the request is aborted")
    left = 'shoal_http_requests_total{method="POST",path="/v1/completions",status="499"}'
    with served.client() as client:
        eventually(lambda: left in client.get("/metrics").text, "the departure is counted")


def test_leaving_while_the_body_is_sent(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
    eventually(lambda: not served.state.live, "nothing is left of it")


def test_a_client_that_only_stops_reading_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.http.event_stream.STALL_SECONDS", 0.3)
    served.engine.answer = "x" * 900
    served.engine.repeat = 20_000
    with post(served, {**COMPLETE, "max_tokens": 900, "stream": True}) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        eventually(lambda: bool(served.engine.live), "the engine works")
        eventually(lambda: not served.engine.live, "the stalled request is ended")


@pytest.mark.parametrize("stream", [False, True])
def test_shutdown_ends_what_is_in_flight_with_an_error(serve: Callable[..., Served], stream: bool) -> None:
    served = serve()
    served.engine.answer = "x" * 400
    served.engine.pause = 0.01
    answers: list[str] = []

    def ask() -> None:
        with served.client() as client:
            answers.append(client.post("/v1/completions", json={**COMPLETE, "stream": stream}).text)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: bool(served.engine.live), "the engine works")
    time.sleep(0.05 if stream else 0)
    loop = next(iter(served.state.live)).get_loop()
    loop.call_soon_threadsafe(served.state.cancel_requests)
    thread.join(10)
    assert '"code":"shutting_down"' in answers[0]
    assert "[DONE]" not in answers[0]
    assert not served.engine.live


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/responses", {"input": "Hi"}, "event: response.failed"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400}, "event: error"),
    ],
)
def test_shutdown_ends_a_stream_in_its_own_dialect(
    serve: Callable[..., Served], path: str, body: dict[str, Any], last: str
) -> None:
    served = serve()
    served.engine.answer = "x" * 400
    served.engine.pause = 0.01
    answers: list[str] = []

    def ask() -> None:
        with served.client() as client:
            answers.append(client.post(path, json={"model": "script", "stream": True, **body}).text)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: bool(served.engine.live), "the engine works")
    time.sleep(0.1)
    loop = next(iter(served.state.live)).get_loop()
    loop.call_soon_threadsafe(served.state.cancel_requests)
    thread.join(10)
    name, data = answers[0].strip().split("\n")[-2:]
    assert name == last
    assert "the server is shutting down" in data
    assert not served.engine.live


def test_a_connection_that_says_nothing_or_half_a_head_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.http.transport.HEAD_SECONDS", 0.2)
    host, port = served.url.removeprefix("http://").split(":")
    whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    for said in (b"", b"GET /hea", whole + b"GET /hea"):
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(said)
            answer = b""
            while piece := sock.recv(4096):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200" if whole in said else b"")


def test_what_is_no_http_gets_400(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    for said in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET \xff\xfe HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(said)
            assert sock.recv(4096).startswith(b"HTTP/1.1 400")
