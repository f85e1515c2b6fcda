"""Dialects: what engines' pages mean, how engines are started, what counts as ready."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from e2ekit import eventually

from shoal.engine.kv.publisher import KvEventPublisher
from shoal.fleet.adapters import DIALECTS, HttpAdapter, LaunchRequest, NotStartable, ReplicaSetup
from shoal.fleet.adapters.base import Gauges, flags, samples
from shoal.fleet.config_file import parse_config
from shoal.fleet.index import Follower, decode_batch
from shoal.fleet.index.events import Removed
from shoal.fleet.launch.ports import free_port_pair
from shoal.fleet.registry import Registry, ReplicaHandle
from shoal.policy.account import ReplicaStats
from shoal.policy.batching import PrefixHasher
from shoal.policy.batching.events import AllBlocksCleared, BlockRemoved, BlockStored
from shoal.policy.outcomes import LegFailed
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import StoredBlocks
from shoal.policy.routing.kv import ExactIndex

# The lines that matter of what each engine answers at /metrics, as their current releases write them.
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:generation_tokens_total{engine="0",model_name="m"} 345.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7959871558272676e+09
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="40"} 1.0
"""
VLLM_LANES = b"""vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 456035.0
sglang:prompt_tokens_total{model_name="m"} 8128902.0
sglang:generation_tokens_total{model_name="m"} 7557572.0
"""
LLAMACPP = b"""llamacpp:prompt_tokens_total 10
llamacpp:tokens_predicted_total 20
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
"""
SLOTS = json.dumps(
    [{"id": 0, "n_ctx": 2048, "is_processing": True}, {"id": 1, "n_ctx": 2048, "is_processing": False}]
)


@pytest.mark.parametrize(
    ("dialect", "text", "stats"),
    [
        ("vllm", VLLM, ReplicaStats(running=3, waiting=2, kv_usage=0.25, kv_capacity_tokens=5120,
                                    generated_tokens=345, prompt_tokens=1200)),
        ("vllm", VLLM_LANES, ReplicaStats(running=7, kv_usage=0.5)),
        ("sglang", SGLANG, ReplicaStats(running=5, waiting=1, kv_usage=0.28, kv_capacity_tokens=456035,
                                        generated_tokens=7557572, prompt_tokens=8128902)),
        ("llamacpp", LLAMACPP, ReplicaStats(running=1, waiting=4, generated_tokens=20, prompt_tokens=10)),
        ("openai", b"nothing that is known 1\n", ReplicaStats()),
        ("vllm", b"\xff\xfe garbage { not metrics", ReplicaStats()),
    ],
)  # fmt: skip
def test_metrics_are_understood(dialect: str, text: bytes, stats: ReplicaStats) -> None:
    adapter = DIALECTS[dialect].adapter("http://127.0.0.1:1", api_key=None, events=None)
    try:
        assert adapter.read(Gauges(text)) == stats
    finally:
        adapter.close()


def test_samples_with_labels_and_without() -> None:
    found = samples(b'a 1\n# b 2\nc{x="y",z="q\\"r"} 3e2\nd NaN\nbroken{ 4\n')
    assert [(s.name, dict(s.labels), s.value) for s in found[:2]] == [
        ("a", {}, 1.0),
        ("c", {"x": "y", "z": 'q\\"r'}, 300.0),
    ]


Answer = Callable[[str, bytes], tuple[int, bytes]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """Answers every request by `answer(path, body)`; whatever else it is asked about HTTP, it doesn't know."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                status, content = answer(path, body)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}"
    finally:
        made.close()


async def adapted(dialect: str, answer: Answer, use: Callable[[HttpAdapter], Any]) -> Any:
    async with server(answer) as url:
        adapter = DIALECTS[dialect].adapter(url, api_key=None, events=None)
        try:
            return await use(adapter)
        finally:
            adapter.close()


async def test_llama_cpp_with_slots_and_metrics() -> None:
    pages = {"/slots": (200, SLOTS.encode()), "/metrics": (200, LLAMACPP)}
    stats = await adapted("llamacpp", lambda path, _: pages[path], lambda a: a.stats())
    assert (stats.running, stats.waiting, stats.kv_usage, stats.kv_capacity_tokens) == (1, 4, 0.5, 4096)


async def test_llama_cpp_without_either() -> None:
    stats = await adapted("llamacpp", lambda path, _: (501, b"{}"), lambda a: a.stats())
    assert stats == ReplicaStats()
    assert await adapted(
        "llamacpp", lambda path, _: (200 if path == "/v1/models" else 404, b""), lambda a: a.ready()
    )


async def test_ready_is_what_the_engine_says() -> None:
    assert await adapted("shoal", lambda path, _: (200 if path == "/ready" else 500, b""), lambda a: a.ready())
    assert not await adapted("shoal", lambda path, _: (503, b""), lambda a: a.ready())
    assert not await adapted("openai", lambda path, _: (401, b""), lambda a: a.ready())


async def test_the_proof_is_a_token() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def chat_only(path: str, body: bytes) -> tuple[int, bytes]:
        asked.append((path, json.loads(body)))
        return (200, b'{"choices": [{}]}') if path == "/v1/chat/completions" else (404, b"{}")

    await adapted("openai", chat_only, lambda a: a.prove("m"))
    assert [path for path, _ in asked] == ["/v1/completions", "/v1/chat/completions"]
    assert all(body["max_tokens"] == 1 and body["model"] == "m" for _, body in asked)
    with pytest.raises(LegFailed, match="503"):
        await adapted("vllm", lambda path, _: (503, b"loading"), lambda a: a.prove("m"))
    with pytest.raises(LegFailed, match="gave none"):
        await adapted("vllm", lambda path, _: (200, b"<html>"), lambda a: a.prove("m"))


def order(**fields: Any) -> LaunchRequest:
    config = parse_config({"pools": [{"name": "p", "model": "/models/m", **fields}]})
    listener = socket.create_server(("127.0.0.1", 0))
    return LaunchRequest("p-0", config.pools[0], listener.getsockname()[1], listener, 2, 0.25, "key", 7000)


def test_how_vllm_is_started() -> None:
    made = order(engine="vllm", executable="/venv/bin/python", layout={"tp": 2}, options={"enforce_eager": True,
                 "max_model_len": 2048, "enable_prefix_caching": False}, environment={"A": "b"})  # fmt: skip
    command = DIALECTS["vllm"].command(made)
    line = " ".join(command.argv)
    assert line.startswith(
        "/venv/bin/python -m vllm.entrypoints.openai.api_server --model /models/m --host 127.0.0.1"
    )
    for part in ("--served-model-name m", "--tensor-parallel-size 2", "--enforce-eager", "--max-model-len 2048",
                 "--no-enable-prefix-caching", f"--port {made.port}"):  # fmt: skip
        assert part in line
    events = json.loads(command.argv[command.argv.index("--kv-events-config") + 1])
    # It binds to local sockets and wildcards alone; to any other address it would connect, and nobody be there.
    assert events["endpoint"] == "ipc://@shoal-kv-7000"
    assert events["replay_endpoint"] == "tcp://127.0.0.1:7001"
    # Keys are not for lists of processes.
    assert "key" not in command.argv
    assert command.environment["VLLM_API_KEY"] == "key"
    assert command.environment["A"] == "b"


def test_how_the_others_are_started() -> None:
    command = DIALECTS["llamacpp"].command(order(engine="llamacpp", options={"ctx_size": 4096}))
    assert " ".join(command.argv).endswith("--threads 2 --metrics --slots --ctx-size 4096")
    assert DIALECTS["sglang"].command(order(engine="sglang")).argv[:3] == ("python3", "-m", "sglang.launch_server")
    with pytest.raises(NotStartable, match="urls"):
        DIALECTS["openai"].command(order())


def test_how_our_own_is_started() -> None:
    made = order(options={"num_blocks": 50}, layout={"tp": 2}, kv_events=True)
    command = DIALECTS["shoal"].command(made)
    setup = msgspec.json.decode(command.stdin, type=ReplicaSetup)
    assert (setup.engine.model, setup.engine.tp, setup.engine.num_blocks) == ("/models/m", 2, 50)
    assert (setup.engine.threads, setup.engine.kv_events) == (2, "tcp://127.0.0.1:7000")
    assert setup.engine.kv_share is None, "num_blocks was said"
    assert (setup.server.api_key, setup.name) == ("key", "m")
    assert "key" not in " ".join(command.argv)
    made.listener.close()


def test_flags() -> None:
    assert flags({"a_b": 1, "c": True, "d": False, "e": "x", "f": None, "g": {"h": [1]}}) == [
        *("--a-b", "1"), "--c", "--no-d", *("--e", "x"), *("--g", '{"h":[1]}')]  # fmt: skip


# KV events, from our engine's publisher to a router's index.


def stored(tokens: list[int], size: int = 4) -> BlockStored:
    return BlockStored(tuple(PrefixHasher(size).hashes(tokens)), None, tuple(tokens), size)


async def test_events_are_published_followed_and_replayed() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port_pair()}"
    publisher = KvEventPublisher(endpoint)
    adapter = DIALECTS["vllm"].adapter("http://127.0.0.1:1", api_key=None, events=endpoint)
    registry, index = Registry(), ExactIndex()
    handle = ReplicaHandle(name="r", url="http://127.0.0.1:1", models=("m",), adapter=adapter)
    follower = Follower(registry.add(handle), index)
    running = asyncio.ensure_future(follower.run())
    first, second = list(range(8)), list(range(100, 108))
    request = RouteRequest("1", "m", 8, tokens=first)
    try:
        # Before anybody listens: the follower finds out by asking for what it missed.
        publisher.publish([stored(first)])
        for n in range(200):
            if follower.counts.messages:
                break
            publisher.publish([stored([n] * 4)])
            await asyncio.sleep(0.02)
        assert index.hits(request, 0.0) == {"r": 8}
        publisher.publish([stored(second), BlockRemoved(tuple(PrefixHasher(4).hashes(first)[1:]))])
        await asyncio.to_thread(eventually, lambda: index.hits(request, 0.0) == {"r": 4}, "the removal arrives", 5)
        replayed = await adapter.replay(0)
        assert replayed is not None
        assert [message.sequence for message in replayed] == list(range(len(replayed)))
        events = decode_batch(replayed[-1].payload)
        assert isinstance(events[0], StoredBlocks)
        assert events[0].tokens == tuple(second)
        assert isinstance(events[1], Removed)
        publisher.publish([AllBlocksCleared()])
        await asyncio.to_thread(eventually, lambda: index.hits(request, 0.0).get("r", 0) == 0, "all is cleared", 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        adapter.close()
        publisher.close()
        registry.close()
