"""A soak over HTTP: mixed lengths, a third cancelled at random moments, a tenth malformed; nothing may leak."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2ekit import Process, eventually, serve_process

CLIENTS = 16
MEMORY_GROWTH = 48 * 2**20
"""Bytes the process may grow by from the end of the warm-up: allocator slack, not a figure per request."""
MALFORMED: list[Any] = [
    b"{",
    b'{"model": "tiny"}',
    b'{"model": "tiny", "prompt": "x", "temperature": -1}',
    b'{"model": "tiny", "prompt": [99999]}',
    b'{"model": "gpt", "prompt": "x"}',
    b'{"model": "tiny", "prompt": "x", "max_tokens": 99999}',
    b'{"model": "tiny", "prompt": "x", "colour": "red"}',
    b'{"model": "tiny", "prompt": "x", "guided_regex": "("}',
]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Process]:
    # Few blocks: preemption takes part.
    limits = ["--num-blocks", "120", "--max-num-seqs", "16", "--max-num-batched-tokens", "128", "--threads", "1"]
    with serve_process(str(tiny_model), "--served-name", "tiny", *limits) as process:
        yield process


class Soak:
    """`total` requests from `CLIENTS` clients at once; counts how each of them ended."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._url = url
        self.ends: Counter[str] = Counter()

    async def run(self, total: int) -> None:
        kinds = ["malformed"] * (total // 10) + ["cancelled"] * (total // 3)
        kinds += ["valid"] * (total - len(kinds))
        self._random.shuffle(kinds)
        work = iter(kinds)
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(
            base_url=self._url, timeout=60, limits=limits, trust_env=False, verify=False
        ) as client:
            await asyncio.gather(*(self._client(client, work) for _ in range(CLIENTS)))

    async def _client(self, client: httpx.AsyncClient, work: Iterator[str]) -> None:
        for kind in work:
            if kind == "malformed":
                await self._malformed(client)
            elif kind == "cancelled":
                await self._cancelled(client)
            else:
                await self._valid(client, self._body())

    def _body(self) -> dict[str, Any]:
        rng = self._random
        prefix = rng.choice(["", "The same beginning of many prompts, long enough for blocks to be shared. "])
        return {
            "model": "tiny",
            "prompt": prefix + "".join(rng.choices("abcdefgh ", k=rng.choice([1, 10, 60, 300]))),
            "max_tokens": rng.choice([1, 2, 8, 30, 80]),
            "n": rng.choice([1, 1, 1, 2]),
            "temperature": rng.choice([0, 1]),
            "ignore_eos": True,
            "stream": rng.random() < 0.5,
            "stream_options": None,
        }

    async def _valid(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        if body["stream"]:
            assert response.text.endswith("data: [DONE]\n\n")
            assert f'"completion_tokens":{body["n"] * body["max_tokens"]},' in response.text
        else:
            answer = response.json()
            assert answer["usage"]["completion_tokens"] == body["n"] * body["max_tokens"]
            assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * body["n"]
        self.ends["valid"] += 1

    async def _cancelled(self, client: httpx.AsyncClient) -> None:
        body = {**self._body(), "max_tokens": 300}
        try:
            async with asyncio.timeout(self._random.choice([0.0, 0.002, 0.02, 0.1, 0.3])):
                await self._valid(client, body)
        except TimeoutError:
            self.ends["cancelled"] += 1

    async def _malformed(self, client: httpx.AsyncClient) -> None:
        content = self._random.choice(MALFORMED)
        response = await client.post(
            "/v1/completions", content=content, headers={"content-type": "application/json"}
        )
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]
        self.ends["malformed"] += 1


def soak(server: Process, total: int) -> None:
    asyncio.run(Soak(server.url, seed=1).run(60))
    settled(server)
    files, memory = server.metric("process_open_fds"), server.metric("process_resident_memory_bytes")
    work = Soak(server.url, seed=2)
    asyncio.run(work.run(total))
    settled(server)
    assert sum(work.ends.values()) == total
    assert work.ends["malformed"] == total // 10
    assert work.ends["valid"] >= total - total // 10 - total // 3
    assert work.ends["cancelled"] > total // 10
    # One of the descriptors is the connection that asks.
    eventually(lambda: server.metric("process_open_fds") <= files, "the connections are closed")
    growth = server.metric("process_resident_memory_bytes") - memory
    assert growth < MEMORY_GROWTH, f"{growth / 2**20:.0f} MiB more than before"


def settled(server: Process) -> None:
    for name in ("shoal_requests_running", "shoal_requests_waiting", "shoal_kv_blocks_used"):
        eventually(lambda name=name: server.metric(name) == 0, f"{name} is 0")  # type: ignore[misc]
    # The request that asks is in flight itself.
    eventually(lambda: server.metric("shoal_http_requests_in_flight") == 1, "every request has ended")


def test_soak_of_200(server: Process) -> None:
    soak(server, 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_soak_of_2000(server: Process) -> None:
    soak(server, 2000)
