"""Where a request's time goes in our gateway: samples of its process under load, by part. Needs py-spy.

    python benchmarks/gateway_where.py [--seconds 6] [--policy round_robin] [--append FILE]

A sample belongs to the part of its innermost frame that belongs to any; system time is of all parts together.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil
import uvloop

import gateway_cost
from machine import append, describe

# Innermost frames first: a file, or file and function.
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("routing: filter, score, pick, index", ("shoal/policy/routing/", "shoal/fleet/gateway/dispatch.py")),
    ("accounts: lease, rates, breaker, trust", ("shoal/fleet/registry/", "shoal/policy/")),
    ("reading the request: JSON, prefix blocks", ("shoal/fleet/gateway/body.py",)),
    ("to the replica and back: HTTP client", ("shoal/fleet/http1.py", "shoal/fleet/gateway/leg.py")),
    ("relaying: events, usage, headers", ("/exchange.py", "/sse.py", "/replies.py", "/journal.py")),
    ("the client's side: HTTP server (uvicorn)", ("uvicorn/", "shoal/engine/server/transport.py")),
    ("gateway: limits, keys, records", ("shoal/fleet/gateway/",)),
    ("event loop and its system calls", ("",)),
)  # fmt: skip


def part_of(stack: str) -> str:
    """The part that a sampled stack (outermost frame first) belongs to."""
    for frame in reversed(stack.split(";")):
        for name, files in PARTS[:-1]:
            if any(file in frame for file in files):
                return name
    return PARTS[-1][0]


def sampled(policy: str, streams: bool, seconds: float) -> tuple[dict[str, float], float, float]:
    """(seconds of processor time an answer takes, by part; of it in the kernel; answers a second)."""
    engines, pipe = gateway_cost.start(gateway_cost.serve_engines, [0, 0])
    ports = pipe.recv()
    gateway, cpu = gateway_cost.start(gateway_cost.serve_gateway, ports, policy)
    port = cpu.recv()
    try:
        uvloop.run(gateway_cost.drive(port, streams=streams, concurrency=16, seconds=0.5))
        with tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch) / "samples"
            spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
            # Not --gil or --native: what the process does, as Python sees it.
            command = [spy, "record", "-p", str(gateway.pid), "-d", f"{seconds:.0f}", "-r", "400", "-f", "raw"]
            process = subprocess.Popen(
                [*command, "-o", str(raw)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            rate, _, _ = uvloop.run(gateway_cost.drive(port, streams=streams, concurrency=16, seconds=seconds + 1))
            _, error = process.communicate(timeout=60)
            if not raw.exists():
                sys.exit(f"py-spy gave nothing: {error.decode()[-300:]}")
            shares: Counter[str] = Counter()
            for line in raw.read_text().splitlines():
                stack, _, count = line.rpartition(" ")
                shares[part_of(stack)] += int(count)
        # Without the profiler, which stops the process for every sample.
        watched = psutil.Process(gateway.pid)
        before = watched.cpu_times()
        rate, _, _ = uvloop.run(gateway_cost.drive(port, streams=streams, concurrency=16, seconds=seconds / 2))
        after = watched.cpu_times()
    finally:
        gateway.kill()
        engines.kill()
    answers = rate * (seconds / 2 + 0.5)
    kernel = (after.system - before.system) / answers
    each = (after.user - before.user) / answers + kernel
    return {name: each * shares[name] / shares.total() for name, _ in PARTS}, kernel, rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--policy", default="round_robin")
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    facts = describe()
    facts.append(("command", shlex.join(["python", *sys.argv])))
    requests, request_kernel, _ = sampled(asked.policy, False, asked.seconds)
    streams, stream_kernel, _ = sampled(asked.policy, True, asked.seconds)
    lines = [f"| part ({asked.policy}) | a request, µs | a 100-chunk stream, µs |", "|---|---|---|"]
    lines += [f"| {name} | {requests[name] * 1e6:.0f} | {streams[name] * 1e6:.0f} |" for name, _ in PARTS]
    lines.append(f"| **all** | {sum(requests.values()) * 1e6:.0f} | {sum(streams.values()) * 1e6:.0f} |")
    lines.append(f"| of it in the kernel | {request_kernel * 1e6:.0f} | {stream_kernel * 1e6:.0f} |")
    body = (
        "\n".join(lines) + "\n\nProcessor time of one answer at 16 connections, divided as py-spy's samples fall."
    )
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Where a gateway's time goes, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
