"""HTTP/1.1 as bytes: what our protocol class does with what clients may send."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from serverkit import eventually
from starlette.types import Receive, Scope, Send

from shoal.http.transport import ON_LOST, HttpProtocol

Address = tuple[str, int]


class App:
    """Answers by path; remembers who left."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.got: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        scope["extensions"][ON_LOST](lambda: self.left.append(path))
        if path == "/early":
            # Before the body has come.
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"no"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.got.append(body)
        if path == "/wait":
            assert (await receive())["type"] == "http.disconnect"
            return
        headers = [(b"x-bad", b"a\r\nb: c")] if path == "/inject" else [(b"x-path", path.encode())]
        if path == "/whole":
            headers.append((b"content-length", b"%d" % len(body)))
        if path == "/short":
            headers.append((b"content-length", b"9"))
        status = 204 if path == "/empty" else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if path == "/broken":
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ValueError("on purpose")
        if path == "/flood":
            for _ in range(64):
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if path == "/empty" else body})


@pytest.fixture(scope="module")
def app() -> App:
    return App()


@pytest.fixture(scope="module")
def address(app: App) -> Iterator[Address]:
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, http=HttpProtocol, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    eventually(lambda: server.started, "the server started")
    yield server.servers[0].sockets[0].getsockname()[:2]
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
    assert not server.server_state.connections
    assert not server.server_state.tasks


def talk(address: Address, *pieces: bytes, half_close: bool = False) -> bytes:
    """Everything that is answered until the server closes."""
    with socket.create_connection(address, timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def request(path: str, body: bytes = b"", *more: str, method: str = "POST", close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_requests_that_come_at_once_are_answered_in_order(address: Address) -> None:
    many = [request(f"/whole?n={n}", b"body %d" % n, close=n == 9) for n in range(10)]
    answer = talk(address, b"".join(many))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 10
    assert [answer.index(b"body %d" % n) for n in range(10)] == sorted(
        answer.index(b"body %d" % n) for n in range(10)
    )


def test_a_request_in_single_bytes_is_one_request(address: Address) -> None:
    data = request("/whole", b"hello")
    answer = talk(address, *(data[i : i + 1] for i in range(len(data))))
    assert body_of(answer) == b"hello"


def test_a_chunked_body_is_put_together_and_an_answer_without_length_is_chunked(address: Address) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = talk(address, head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")
    assert b"transfer-encoding: chunked\r\n" in answer
    assert body_of(answer) == b"5\r\nabcde\r\n0\r\n\r\n"


def test_who_speaks_1_0_gets_a_body_that_ends_with_the_connection(address: Address) -> None:
    answer = talk(address, b"POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
    assert b"chunked" not in answer
    assert body_of(answer) == b"abc"


def test_head_and_204_have_no_body(address: Address) -> None:
    for data in (request("/echo", b"abc", method="HEAD"), request("/empty", b"abc")):
        answer = talk(address, data)
        assert body_of(answer) == b""
        assert b"chunked" not in answer


def test_a_client_that_waits_for_100_is_told_to_go_on(address: Address) -> None:
    with socket.create_connection(address, timeout=10) as sock:
        data = request("/whole", b"abc", "Expect: 100-continue")
        sock.sendall(data[:-3])
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        answer = b""
        while piece := sock.recv(4096):
            answer += piece
        assert body_of(answer) == b"abc"


def test_an_answer_before_the_body_leaves_the_connection_in_step(address: Address) -> None:
    first = request("/early", b"x" * 100_000, close=False)
    answer = talk(address, first[:200], first[200:], request("/whole", b"next"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"next")


def test_what_asks_for_another_protocol_is_answered_and_closed(address: Address) -> None:
    answer = talk(address, request("/whole", b"abc", "Upgrade: h2c", "Connection: Upgrade", close=False))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer


def test_a_head_that_never_ends_is_refused(address: Address) -> None:
    answer = talk(address, b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 60_000, b"c" * 60_000)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_garbage_after_a_request_ends_the_connection_after_its_answer(address: Address) -> None:
    answer = talk(address, request("/whole", b"abc", close=False) + b"\x00garbage\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 400 "))
    assert answer.count(b"HTTP/1.1") == 1


def test_a_line_break_in_a_header_is_no_header(address: Address) -> None:
    answer = talk(address, request("/inject", b""))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"b: c" not in answer
    # The answer to a failure says so itself, and the connection was to be closed anyway: one header.
    assert answer.count(b"connection: close\r\n") == 1


def test_what_breaks_off_is_seen_to(address: Address) -> None:
    answer = talk(address, request("/broken", b""))
    assert body_of(answer) == b"4\r\nhalf\r\n"
    # Less than was promised: the client must not take it for whole.
    assert talk(address, request("/short", b"abc")) == b""


def test_a_client_that_leaves_is_told_of(address: Address, app: App) -> None:
    before = len(app.left)
    with socket.create_connection(address, timeout=10) as sock:
        sock.sendall(request("/wait", b"abc"))
        eventually(lambda: b"abc" in app.got, "the body came")
    eventually(lambda: app.left[before:] == ["/wait"], "who left is told of")


def test_a_slow_reader_gets_all_of_a_large_answer(address: Address) -> None:
    answer = body_of(talk(address, request("/flood", b"end")))
    assert answer.count(b"x") == 64 * 65536
    assert answer.endswith(b"3\r\nend\r\n0\r\n\r\n")
