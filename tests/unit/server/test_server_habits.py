"""What clients and proxies do with HTTP, at a replica: compressed bodies, trailing slashes, long silences."""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable

from serverkit import Served, eventually

from shoal.engine.errors import InvalidRequest

BODY = {"model": "script", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


def test_compressed_bodies_are_read_within_bounds(serve: Callable[..., Served]) -> None:
    served = serve(max_body_bytes=50_000)
    raw = json.dumps(BODY).encode()
    with served.client() as client:

        def send(body: bytes, encoding: str) -> int:
            headers = {"content-type": "application/json", "content-encoding": encoding}
            return client.post(PATH, content=body, headers=headers).status_code

        assert send(gzip.compress(raw), "gzip") == 200
        assert send(zlib.compress(raw), "deflate") == 200
        assert send(raw, "identity") == 200
        assert send(gzip.compress(b" " * 10_000_000), "gzip") == 413
        assert send(gzip.compress(raw)[:-3], "gzip") == 400
        assert send(raw, "zstd") == 415


def test_a_trailing_slash_is_the_same_place(serve: Callable[..., Served]) -> None:
    served = serve(api_key="k")
    with served.client() as client:
        assert client.post(PATH + "/", json=BODY).status_code == 401
        auth = {"authorization": "Bearer k"}
        assert client.post(PATH + "/", json=BODY, headers=auth).status_code == 200
        assert client.get("/v1/models/", headers=auth).status_code == 200
        assert client.get("/health/").status_code == 200


def test_a_silent_stream_gets_comments(serve: Callable[..., Served]) -> None:
    """LiteLLM#14953, ollama#14420."""
    served = serve(heartbeat_seconds=0.05)
    served.engine.hold_first = True
    lines: list[str] = []

    def read() -> None:
        with served.client() as client, client.stream("POST", PATH, json=BODY | {"stream": True}) as response:
            assert response.status_code == 200
            lines.extend(response.iter_lines())

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.4)
    served.engine.hold_first = False
    thread.join(10)
    assert lines[0] == ": keep-alive"
    assert lines.count(": keep-alive") >= 2
    assert [line for line in lines if line][-1] == "data: [DONE]"
    text = "".join(
        choice["delta"].get("content") or ""
        for line in lines
        if line.startswith("data: {")
        for choice in json.loads(line[6:])["choices"]
    )
    assert text == "Hello, wörld!"


def test_a_client_that_leaves_during_the_silence_ends_its_request(serve: Callable[..., Served]) -> None:
    served = serve(heartbeat_seconds=0.05)
    served.engine.hold_first = True
    with served.client() as client, client.stream("POST", PATH, json=BODY | {"stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines) == ": keep-alive"
        eventually(lambda: bool(served.engine.live), "it is being computed")
    eventually(lambda: not served.engine.live, "the request was ended")
    served.engine.hold_first = False


def test_what_fails_before_a_heartbeat_keeps_its_status(serve: Callable[..., Served]) -> None:
    served = serve(heartbeat_seconds=0.05)
    served.engine.refuses = InvalidRequest("max_tokens", 5000, "less")
    with served.client() as client:
        assert client.post(PATH, json=BODY | {"stream": True}).status_code == 400
