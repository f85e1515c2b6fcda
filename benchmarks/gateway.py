"""What a gateway costs: Shoal's beside two Rust routers, before the same two engines that answer at once.

    python benchmarks/gateway.py [--seconds 5] [--rounds 3] [--append FILE]

wrk drives one 960-byte chat request: the added median at one connection, requests/s and 100-chunk streams/s at 16.
Rounds are interleaved. Each gateway forwards round robin; the engines and wrk take their share of the machine too,
so compare the columns of one run and nothing else. Routers are found in BENCH_ROUTERS (a virtual environment).
"""

import argparse
import contextlib
import multiprocessing as mp
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway_cost import Engine
from machine import append, describe
from peers.engines import Absent, free_port, stop, wait_for

CHUNKS = 100
BODY_BYTES = 960


class MockEngine(Engine):
    """An instant engine that also lists its model: some routers won't send to a worker before they know it."""

    _url = b""

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        if self._url.startswith(b"/v1/models"):
            body = b'{"object":"list","data":[{"id":"mock","object":"model","created":1,"owned_by":"mock"}]}'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(body) + body)
            return
        super().on_message_complete()


def serve_engine(port: int) -> None:
    """A mock engine on a port, until killed."""
    import asyncio

    import uvloop

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(MockEngine, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(main())


def serve_shoal(port: int, engines: list[str]) -> None:
    """Shoal's gateway over fixed engines, until killed."""
    import uvicorn

    from shoal.fleet.gateway import Gateway
    from shoal.fleet.registry import Registry, ReplicaHandle

    registry = Registry()
    for place, url in enumerate(engines):
        registry.add(ReplicaHandle(name=f"r{place}", url=url, models=("mock",)))
    uvicorn.run(
        Gateway(registry),
        port=port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_config=None,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    p50: float
    """Seconds, at one connection."""
    requests: float
    streams: float


@dataclass(frozen=True, slots=True)
class Wrk:
    """Drives one chat request."""

    program: str
    folder: Path
    seconds: int

    def script(self, stream: bool) -> Path:
        path = self.folder / f"request-{stream}.lua"
        head = '{"model":"mock","max_tokens":100,' + ('"stream":true,' if stream else "")
        head += '"messages":[{"role":"user","content":"'
        body = head + "a" * (BODY_BYTES - len(head) - 4) + '"}]}'
        path.write_text(
            f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{body}'\n"
        )
        return path

    def drive(self, url: str, connections: int, stream: bool) -> tuple[float, float]:
        """(answers a second, median seconds). `Absent` if any answer was an error."""
        command = [
            *(self.program, "-t1", f"-c{connections}", f"-d{self.seconds}s", "--latency", "--timeout", "10s"),
            *("-s", str(self.script(stream)), f"{url}/v1/chat/completions"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.seconds + 60, check=False)
        rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        half = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout)
        wrong = [line.strip() for line in done.stdout.splitlines() if "Non-2xx" in line or "Socket errors" in line]
        if wrong or not rate or not half:
            raise Absent(f"c={connections}: " + ("; ".join(wrong) or done.stderr[-200:] or "wrk said nothing"))
        return float(rate.group(1)), float(half.group(1)) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[half.group(2)]

    def figures(self, url: str) -> Figures:
        _, p50 = self.drive(url, 1, False)
        requests, _ = self.drive(url, 16, False)
        streams, _ = self.drive(url, 16, True)
        return Figures(p50, requests, streams)


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    process = mp.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join(15)


@contextlib.contextmanager
def router(name: str, command: list[str], port: int, logs: Path) -> Iterator[str]:
    """A router as a process of its own, ready."""
    if not Path(command[0]).exists():
        raise Absent(f"{name}: no program at {command[0]}")
    log = logs / f"{name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", process, 60, log)
        answers(url, 60, log)
        yield url
    finally:
        stop(process)


def answers(url: str, seconds: float, log: Path) -> None:
    """Until a chat request is answered with 200: a router is healthy before it knows its workers."""
    body = b'{"model":"mock","max_tokens":1,"messages":[{"role":"user","content":"a"}]}'
    asked = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < deadline:
        try:
            with opener.open(asked, timeout=10):
                return
        except OSError as error:
            last = f"{error}"
        time.sleep(0.2)
    raise Absent(f"no answer to a chat request within {seconds:g} s ({last}; see {log})")


def commands(routers: Path, engines: list[str], ports: dict[str, int]) -> dict[str, list[str]]:
    common = ["--host", "127.0.0.1", "--policy", "round_robin", "--worker-urls", *engines]
    vllm, smg = str(ports["vllm-router"]), str(ports["smg"])
    return {
        "vllm-router": [
            str(routers / "vllm-router"),
            "--port",
            vllm,
            *common,
            "--prometheus-port",
            str(free_port()),
        ],
        "smg": [str(routers / "smg"), "launch", "--port", smg, *common, "--prometheus-port", str(free_port())],
    }


def table(found: dict[str, list[Figures]]) -> str:
    def middle(name: str, read: Callable[[Figures], float]) -> float:
        return statistics.median(read(f) for f in found[name])

    direct = middle("direct", lambda f: f.p50)
    lines = ["| gateway | added p50, c=1 | requests/s, c=16 | 100-chunk streams/s, c=16 |", "|---|---|---|---|"]
    for name in found:
        added = "–" if name == "direct" else f"{(middle(name, lambda f: f.p50) - direct) * 1e3:.2f} ms"
        requests, streams = middle(name, lambda f: f.requests), middle(name, lambda f: f.streams)
        lines.append(f"| {name} | {added} | {requests:,.0f} | {streams:,.0f} |")
    return (
        "\n".join(lines)
        + f"\n\nDirect p50 at c=1: {direct * 1e3:.2f} ms. Medians of {len(found['direct'])} rounds."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="of each of three measurements")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--routers", default=os.environ.get("BENCH_ROUTERS", "/opt/peers/routers"))
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    program = shutil.which("wrk")
    if program is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    facts, left_out = describe(), []
    found: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-gateways-")))
        wrk = Wrk(program, logs, asked.seconds)
        ports = [free_port(), free_port()]
        for port in ports:
            stack.enter_context(child(serve_engine, port))
        engines = [f"http://127.0.0.1:{port}" for port in ports]
        urls = {"direct": engines[0]}
        shoal = free_port()
        stack.enter_context(child(serve_shoal, shoal, engines))
        urls["shoal"] = f"http://127.0.0.1:{shoal}"
        names = {name: free_port() for name in ("vllm-router", "smg")}
        for name, command in commands(Path(asked.routers) / "bin", engines, names).items():
            try:
                urls[name] = stack.enter_context(router(name, command, names[name], logs))
            except Absent as error:
                left_out.append(f"{name}: {error}")
        for number in range(asked.rounds):
            order = list(urls)
            for name in order if number % 2 == 0 else reversed(order):
                try:
                    figures = wrk.figures(urls[name])
                except Absent as error:
                    left_out.append(f"{name}, round {number + 1}: {error}")
                    continue
                found.setdefault(name, []).append(figures)
                print(f"  round {number + 1}: {name:<12} {figures}", flush=True)
    if "direct" not in found:
        sys.exit("the mock engines gave nothing: " + "; ".join(left_out))
    facts.append(("command", shlex.join(["python", *sys.argv])))
    body = table(found) + "".join(f"\n\nLeft out: {why}" for why in left_out)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Gateways, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
