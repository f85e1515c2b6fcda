"""How long the event loop of one replica stands still while hostile requests come in, one kind at a time.

    python benchmarks/stalls.py [--model smollm2-135m] [--seconds 8] [--append benchmarks/results/stalls.md]

A task of the loop itself measures: it wakes every millisecond. It shows more than what clients feel, since a
waiting client is mostly waiting for a step of the engine. The sender is a process of its own, with one request at a
time. `none` is the replica with a stream and nothing else.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import multiprocessing
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attack import ATTACKS, MB, Request, _chat, gaps_of_stream
from machine import append, describe
from shoal.engine.options import EngineOptions
from shoal.http.listening import bind
from shoal.server.lifecycle import ReplicaServer
from shoal.server.options import ServerOptions

_BEAT = 0.001


def _escapes(model: str) -> Iterator[Request]:
    head = f'{{"model":"{model}","max_tokens":1,"prompt":"'.encode()
    texts = [rb"\u00e9" * 2_600_000, rb"\u00e9" * 1_100_000, rb"\n" * 1_100_000]
    yield from itertools.cycle(Request("/v1/completions", head + text + b'"}') for text in texts)


def _ids(model: str) -> Iterator[Request]:
    body = {"model": model, "max_tokens": 1}
    yield from itertools.cycle(
        Request("/v1/completions", json.dumps({**body, "prompt": [49_000] * n}).encode())
        for n in (1_000_000, 490_000)
    )


def _grammars(model: str) -> Iterator[Request]:
    for turn in itertools.count():
        schema = {"type": "object", "properties": {f"p{turn}": {"type": "integer"}}, "required": [f"p{turn}"]}
        yield _chat(model, "Hello", guided_json=schema)


def _tokenize(model: str) -> Iterator[Request]:
    body = {"model": model, "prompt": "the quick brown fox " * (2 * MB // 20)}
    yield from itertools.cycle([Request("/tokenize", json.dumps(body).encode())])


HOSTILE: dict[str, Callable[[str], Iterator[Request]]] = {
    **ATTACKS,
    "escapes": _escapes,
    "490,000 and 1 M token ids": _ids,
    "grammars": _grammars,
    "/tokenize of 2 MB": _tokenize,
}


class Watch:
    """The seconds between wake-ups of a loop, beyond those asked for."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_BEAT)
            self.late.append(time.perf_counter() - before - _BEAT)


def _send(port: int, model: str, name: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    for request in HOSTILE[name](model):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", request.path, request.body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()
        if time.monotonic() > until:
            return


def _serve(model: str, watch: Watch) -> int:
    """In a thread of this process; its port."""
    sock, ready = bind("127.0.0.1", 0), threading.Event()
    options = EngineOptions(model=model, threads=1)

    async def is_ready(replica: ReplicaServer) -> None:
        watch.task = asyncio.ensure_future(watch.run())  # type: ignore[attr-defined]
        ready.set()

    def run() -> None:
        asyncio.run(ReplicaServer(options, ServerOptions(port=0), model).run(sock, is_ready))

    threading.Thread(target=run, daemon=True).start()
    if not ready.wait(120):
        raise SystemExit("the replica was not ready within 120 s")
    port: int = sock.getsockname()[1]
    return port


def _row(name: str, late: list[float]) -> str:
    p50, p999 = (np.percentile(late, q) * 1000 for q in (50, 99.9))
    over = sum(1 for seconds in late if seconds > 0.05)
    return f"| {name} | {p50:.1f} | {p999:.0f} | {max(late) * 1000:.0f} | {over} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    facts = [*describe(), ("command", shlex.join(["python", *sys.argv]))]
    watch = Watch()
    port = _serve(asked.model, watch)
    lines = ["| requests | late p50, ms | late p99.9, ms | longest, ms | over 50 ms |", "|---|---|---|---|---|"]
    spawn = multiprocessing.get_context("spawn")
    for name in ("none", *HOSTILE):
        process: Any = None
        watch.late.clear()
        if name != "none":
            process = spawn.Process(target=_send, args=(port, asked.model, name, asked.seconds), daemon=True)
            process.start()
        while process is None or process.is_alive():
            gaps_of_stream(port, asked.model, 60)
            if process is None:
                break
        lines.append(_row(name, list(watch.late)))
        print(lines[-1], flush=True)
    if asked.append:
        append(asked.append, f"Stalls of a replica's event loop, {facts[0][1][:10]}", facts, "\n".join(lines))


if __name__ == "__main__":
    main()
