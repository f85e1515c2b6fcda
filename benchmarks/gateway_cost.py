"""What the gateway costs: requests and streams a second per core, before engines that answer at once.

    python benchmarks/gateway_cost.py [--seconds 3] [--concurrency 16] [--policy round_robin]
                                      [--usage] [--url OTHER_ROUTER --ports 9001,9002]

Each run prints wall-clock rates and, for our own gateway, CPU time a request, which other work on the machine
changes less. With `--usage` the engines end a stream with its usage where the request asks for it, as real ones do;
without it, the gateway has to count the tokens itself. With `--url` another router is driven in the same way; it
must have been told of engines on `--ports`.
"""

import argparse
import asyncio
import contextlib
import multiprocessing as mp
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import cast

import httptools
import uvloop

CHUNKS = 100
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{"index":0,'
    b'"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n" % len(_EVENT) + _EVENT + b"\r\n"
_USAGE_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"mock","choices":[],"usage":'
    b'{"prompt_tokens":20,"completion_tokens":100,"total_tokens":120}}\n\n'
)
_USAGE = b"%x\r\n" % len(_USAGE_EVENT) + _USAGE_EVENT + b"\r\n"
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_BODY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"mock","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,'
    b'"completion_tokens":1,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":0}}}'
)
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Engine(asyncio.Protocol):
    """Answers as soon as a request is whole; a stream's chunks one write each."""

    def __init__(self, *, usage: bool = False) -> None:
        self._counts = usage

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if b'"stream":true' not in body:
            self._transport.write(_WHOLE)
            return
        self._transport.write(_HEAD)
        self._end = _USAGE + _DONE if self._counts and b'"include_usage":true' in body else _DONE
        self._left = CHUNKS
        self._next()

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        if self._left == 0:
            self._transport.write(self._end)
            return
        self._left -= 1
        self._transport.write(_CHUNK)
        asyncio.get_running_loop().call_soon(self._next)


async def serve_engines(ports: list[int], pipe: Connection, usage: bool = False) -> None:
    loop = asyncio.get_running_loop()
    made = partial(Engine, usage=usage)
    servers = [await loop.create_server(made, "127.0.0.1", port) for port in ports]
    pipe.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.Event().wait()


async def serve_gateway(ports: list[int], pipe: Connection, policy: str) -> None:
    import uvicorn

    from shoal.fleet.gateway import Gateway, GatewayConfig
    from shoal.fleet.registry import Registry, ReplicaHandle
    from shoal.http.transport import HttpProtocol
    from shoal.policy.routing import RouterConfig

    registry = Registry()
    for place, port in enumerate(ports):
        registry.add(ReplicaHandle(name=f"r{place}", url=f"http://127.0.0.1:{port}", models=("mock",)))
    gateway = Gateway(registry, GatewayConfig(router=RouterConfig(policy=policy)))
    options = {
        "http": HttpProtocol,
        "loop": "none",
        "lifespan": "off",
        "access_log": False,
        "proxy_headers": False,
        "log_config": None,
    }
    server = uvicorn.Server(uvicorn.Config(gateway, port=0, **options))  # type: ignore[arg-type]
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 — uvicorn has no event for it
        await asyncio.sleep(0.01)
    pipe.send(server.servers[0].sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    # CPU time of this process, whenever it is asked for.
    loop.add_reader(pipe.fileno(), lambda: pipe.send(time.process_time()) if pipe.recv() else None)
    await serving


def _run(work: object, ports: list[int], pipe: Connection, more: tuple[object, ...]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(work(ports, pipe, *more))  # type: ignore[operator]


def start(work: object, ports: list[int], *more: object) -> tuple[mp.Process, Connection]:
    ours, theirs = mp.Pipe()
    process = mp.Process(target=_run, args=(work, ports, theirs, more), daemon=True)
    process.start()
    return process, ours


class Client(asyncio.Protocol):
    """One connection that sends the next request as soon as an answer is whole."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.done = 0
        self.times: list[float] = []
        self.bad = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.times.append(time.perf_counter() - self._at)
        self.bad += self._parser.get_status_code() != 200
        self.done += 1
        asyncio.get_running_loop().call_soon(self._send)


async def drive(port: int, *, streams: bool, concurrency: int, seconds: float) -> tuple[float, float, int]:
    """Requests a second, median latency in seconds, and answers that were not 200."""
    words = "tell me a story about a small shoal of fish. " * 8
    body = b'{"model":"mock","messages":[{"role":"user","content":"%s"}],"max_tokens":100%s}' % (
        words.encode(),
        b',"stream":true' if streams else b"",
    )
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    loop = asyncio.get_running_loop()
    clients = [Client(request) for _ in range(concurrency)]
    transports = [(await loop.create_connection(lambda c=c: c, "127.0.0.1", port))[0] for c in clients]  # type: ignore[misc]
    await asyncio.sleep(0.5)
    before, at = sum(c.done for c in clients), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(c.done for c in clients) - before) / (time.perf_counter() - at)
    for transport in transports:
        transport.abort()
    times = sorted(t for c in clients for t in c.times[1:])
    return rate, times[len(times) // 2], sum(c.bad for c in clients)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--policy", default="round_robin", help="of our gateway")
    parser.add_argument("--usage", action="store_true", help="engines say the usage of a stream")
    parser.add_argument("--url", help="another router's port on this machine")
    parser.add_argument("--ports", default="0,0", help="ports of the mock engines")
    asked = parser.parse_args()
    started = []
    engines, pipe = start(serve_engines, [int(p) for p in asked.ports.split(",")], asked.usage)
    started.append(engines)
    ports = pipe.recv()
    cpu: Connection | None = None
    if asked.url:
        port = int(asked.url.rsplit(":", 1)[1])
    else:
        gateway, cpu = start(serve_gateway, ports, asked.policy)
        started.append(gateway)
        port = cpu.recv()
    try:
        for name, target, meter in (("direct to one engine", ports[0], None), ("through the router", port, cpu)):
            for streams in (False, True):
                for concurrency in (1, asked.concurrency):
                    spent = _cpu(meter)
                    rate, median, bad = uvloop.run(
                        drive(target, streams=streams, concurrency=concurrency, seconds=asked.seconds)
                    )
                    used = _cpu(meter) - spent
                    kind = f"{CHUNKS}-chunk streams" if streams else "requests"
                    share = f", {used / (asked.seconds + 0.5) / rate * 1e6:.0f} us CPU each" if meter else ""
                    print(
                        f"{name}, c={concurrency}: {rate:.0f} {kind}/s, p50 {median * 1e3:.2f} ms{share}, {bad} bad"
                    )
    finally:
        for process in started:
            process.kill()


def _cpu(meter: Connection | None) -> float:
    if meter is None:
        return 0.0
    meter.send(True)
    return float(meter.recv())


if __name__ == "__main__":
    main()
