"""Seconds from `shoal serve` on the command line to the first token of an answer, files already in the page cache.

    python benchmarks/start.py [--model smollm2-135m] [--rounds 5] [--append benchmarks/results/start.md]

The clock starts when the process is made and stops when the first event with text has come over HTTP; asking begins
as soon as the port takes connections.
"""

import argparse
import asyncio
import os
import shlex
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from machine import append, describe
from peers.engines import Absent, shoal_server
from shoal.bench.target import Target, TargetOptions
from shoal.workload.load import Turn
from shoal.workload.stats import mean_estimate


async def first_token(url: str, started: float) -> float:
    """Seconds from `started` (perf_counter) to the first text of a short answer."""
    async with await Target.open(TargetOptions(url, prompt_form="text")) as target:
        # The probe's short request is the first that the server answers, but its time is the probe's own business.
        reply = await target.send(target.body("The sea is", Turn((), 4)), 60)
    if not reply.events:
        raise Absent(f"no token: {reply.error}")
    return reply.events[0] - started


def once(model: str, log: Path, threads: int) -> tuple[float, float]:
    """(seconds to ready, seconds to the first token) of one start."""
    started = time.perf_counter()
    with shoal_server(model, "--threads", str(threads), log=log, seconds=120) as port:
        ready = time.perf_counter() - started
        return ready, asyncio.run(first_token(f"http://127.0.0.1:{port}", started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--logs", type=Path, default=Path("/tmp/shoal-bench"))
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    asked.logs.mkdir(parents=True, exist_ok=True)
    facts, times = describe(), []
    for number in range(asked.rounds + 1):
        ready, first = once(asked.model, asked.logs / "start.log", asked.threads)
        kind = "cold, not counted" if number == 0 else "warm"
        print(f"  start {number} ({kind}): ready after {ready:.2f} s, first token after {first:.2f} s", flush=True)
        if number:
            times.append(first)
    e = mean_estimate(np.asarray(times))
    interval = "" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]"
    body = (
        f"Warm start to first token over HTTP: mean {e.value:.2f}{interval} s, "
        f"median {statistics.median(times):.2f}, max {max(times):.2f} s, {len(times)} starts."
    )
    facts.append(("command", shlex.join(["python", *sys.argv])))
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Start of {asked.model}, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
