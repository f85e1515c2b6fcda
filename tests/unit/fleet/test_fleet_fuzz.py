"""Whatever bytes come in: no 5xx, no hang, nothing left behind."""

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet import Fleet, eventually, fleet

ATOMS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20))
JSON = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
FIELDS = st.sampled_from(
    [
        *(
            "model",
            "messages",
            "prompt",
            "max_tokens",
            "stream",
            "n",
            "stop",
            "temperature",
            "seed",
            "stream_options",
        ),
        *("priority", "tools", "response_format", "user", "cache_salt", "prompt_cache_key", "return_token_ids"),
    ]
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda v: json.dumps(v).encode()),
    st.dictionaries(FIELDS, JSON, max_size=5).map(
        lambda d: json.dumps({"model": "fake", "prompt": [1, 2], "max_tokens": 1} | d).encode()
    ),
)
PATHS = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/%ff", "/", "//", "/ready"]
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
RAW = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"GET /v1/models HTTP/1.1\r\nauthorization: \xff\xfe\r\nx-request-id: \x80\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        ]
    ),
)


def examples(count: int) -> Any:
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, suppress_health_check=quiet, database=None)


def run(check: Any, strategy: Any, count: int) -> None:
    """Draw examples into one fleet: starting one for each would be the whole cost."""
    drawn: list[Any] = []

    @examples(count)
    @given(strategy)
    def collect(value: Any) -> None:
        drawn.append(value)

    collect()

    async def all_of_them() -> None:
        async with fleet(1) as f:
            for value in drawn:
                async with asyncio.timeout(10):
                    await check(f, value)
            gateway = f.gateway
            assert gateway is not None
            await eventually(lambda: gateway.live == 0, "every request ended")
            f.check()
            assert (await f.post(f.chat())).status_code == 200

    asyncio.run(all_of_them())


def test_bodies() -> None:
    async def check(f: Fleet, value: tuple[str, str, bytes]) -> None:
        method, path, body = value
        response = await f.client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert response.status_code < 500, (value, response.content)
        if response.status_code >= 400 and method != "HEAD":
            assert response.json()["error"]["message"]

    run(check, st.tuples(METHODS, PATHS, BODIES), 150)


def test_bytes_that_are_hardly_http() -> None:
    async def check(f: Fleet, raw: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(f.url.rsplit(":", 1)[1]))
        writer.write(raw)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        assert not answer.startswith(b"HTTP/1.1 5"), (raw, answer)
        writer.close()

    run(check, RAW, 80)
