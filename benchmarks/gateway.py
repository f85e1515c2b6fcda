"""What a gateway costs: Shoal's beside two Rust routers, before the same two engines that answer at once.

    python benchmarks/gateway.py [--seconds 4] [--rounds 3] [--quick] [--append FILE]

wrk drives one 960-byte chat request: the added median at one connection, requests/s and 100-chunk streams/s at 16,
and the processor time that the gateway's process took for each, over all its threads. Rounds are interleaved. Every
gateway forwards round robin; Shoal is measured with its default policy besides. Engines and wrk take their share of
the machine too, so compare the rows of one run and nothing else. Routers are found in BENCH_ROUTERS (a virtual
environment).
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

import psutil

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


def serve_shoal(port: int, engines: list[str], policy: str) -> None:
    """Shoal's gateway over fixed engines, until killed."""
    import uvicorn

    from shoal.fleet.gateway import Gateway, GatewayConfig
    from shoal.fleet.registry import Registry, ReplicaHandle
    from shoal.http.transport import HttpProtocol
    from shoal.policy.routing import RouterConfig

    registry = Registry()
    for place, url in enumerate(engines):
        registry.add(ReplicaHandle(name=f"r{place}", url=url, models=("mock",)))
    uvicorn.run(
        Gateway(registry, GatewayConfig(router=RouterConfig(policy=policy))),
        port=port,
        http=HttpProtocol,
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
    """A second, at 16 connections; so are streams."""
    streams: float
    request_cpu: float
    """Seconds of processor time for one."""
    stream_cpu: float


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

    def figures(self, side: "Side") -> Figures:
        _, p50 = self.drive(side.url, 1, False)
        started = side.cpu()
        requests, _ = self.drive(side.url, 16, False)
        between = side.cpu()
        streams, _ = self.drive(side.url, 16, True)
        spent = between - started, side.cpu() - between
        each = [s / self.seconds / rate for s, rate in zip(spent, (requests, streams), strict=True)]
        return Figures(p50, requests, streams, each[0], each[1])


@dataclass(frozen=True, slots=True)
class Side:
    """A running gateway, or an engine itself."""

    url: str
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time that its process and its children have taken so far."""
        process = psutil.Process(self.pid)
        times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
        return sum(t.user + t.system for t in times)


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """A function in a process of its own; its pid."""
    process = mp.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join(15)


@contextlib.contextmanager
def router(name: str, command: list[str], port: int, logs: Path) -> Iterator[Side]:
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
        yield Side(url, process.pid)
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
    lines = [
        "| gateway | added p50, c=1 | requests/s, c=16 | 100-chunk streams/s, c=16 | CPU/request | CPU/stream |",
        "|---|---|---|---|---|---|",
    ]
    for name in found:
        added = "–" if name == "direct" else f"{(middle(name, lambda f: f.p50) - direct) * 1e3:.2f} ms"
        requests, streams = middle(name, lambda f: f.requests), middle(name, lambda f: f.streams)
        cpu = [f"{middle(name, read) * 1e6:,.0f} µs" for read in (lambda f: f.request_cpu, lambda f: f.stream_cpu)]
        lines.append(f"| {name} | {added} | {requests:,.0f} | {streams:,.0f} | " + " | ".join(cpu) + " |")
    notes = (
        f"\n\nDirect p50 at c=1: {direct * 1e3:.2f} ms. Medians of {len(found['direct'])} rounds. CPU: processor "
        "time of the gateway's process, the kernel's part included; a million over it is what one core can do. "
        "Shoal uses one core, the routers as many as there are."
    )
    return "\n".join(lines) + notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=4, help="of each of three measurements")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds each, to see that it works")
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
        wrk = Wrk(program, logs, 2 if asked.quick else asked.seconds)
        ports = [free_port(), free_port()]
        engines = [f"http://127.0.0.1:{port}" for port in ports]
        sides: dict[str, Side] = {}
        for engine, port in zip(engines, ports, strict=True):
            sides.setdefault("direct", Side(engine, stack.enter_context(child(serve_engine, port))))
        for name, policy in (("shoal", "round_robin"), ("shoal, default policy", "default")):
            port = free_port()
            pid = stack.enter_context(child(serve_shoal, port, engines, policy))
            sides[name] = Side(f"http://127.0.0.1:{port}", pid)
            answers(sides[name].url, 60, logs / "none")
        names = {name: free_port() for name in ("vllm-router", "smg")}
        for name, command in commands(Path(asked.routers) / "bin", engines, names).items():
            try:
                sides[name] = stack.enter_context(router(name, command, names[name], logs))
            except Absent as error:
                left_out.append(f"{name}: {error}")
        for number in range(1 if asked.quick else asked.rounds):
            order = list(sides)
            for name in order if number % 2 == 0 else reversed(order):
                try:
                    figures = wrk.figures(sides[name])
                except Absent as error:
                    left_out.append(f"{name}, round {number + 1}: {error}")
                    continue
                found.setdefault(name, []).append(figures)
                print(f"  round {number + 1}: {name:<22} {figures}", flush=True)
    if "direct" not in found:
        sys.exit("the mock engines gave nothing: " + "; ".join(left_out))
    facts.append(("command", shlex.join(["python", *sys.argv])))
    body = table(found) + "".join(f"\n\nLeft out: {why}" for why in left_out)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Gateways, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
