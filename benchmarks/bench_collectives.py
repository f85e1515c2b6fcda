"""Microseconds of an all-reduce between processes of this host: shared memory and Gloo.

    python benchmarks/bench_collectives.py [--ranks 2]

Each figure is the median over repetitions of the slowest rank's time a call. Needs as many idle cores as ranks.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.parallel.shm_layout import SegmentLayout, anonymous_segment
from shoal.engine.parallel.traffic import TrafficCounters

SIZES = (64, 2048, 16 * 1024, 128 * 1024, 1024 * 1024)


def rank(index: int, ranks: int, backend: str, fd: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if backend == "gloo":
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=index, world_size=ranks)
        reduce: Callable[[torch.Tensor], object] = dist.all_reduce
    else:
        # /proc, because a spawned child does not inherit descriptors.
        own = os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_RDWR)
        reduce = ShmGroup("tp", range(ranks), index, own, TrafficCounters(), 30).all_reduce
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        repeats = 200 if size < 1 << 17 else 40
        times = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(repeats):
                reduce(tensor)
            times.append((time.perf_counter() - start) / repeats)
        pipe.send((size, statistics.median(times) * 1e6))
    pipe.close()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    spawn = multiprocessing.get_context("spawn")
    print(f"{'bytes':>9}  " + "  ".join(f"{name:>9}" for name in ("shared", "gloo")) + "   µs")
    columns: dict[str, dict[int, float]] = {}
    for backend in ("shared", "gloo"):
        fd = anonymous_segment("bench", SegmentLayout(ranks).size)
        store = Path(f"/tmp/shoal-bench-store-{os.getpid()}-{backend}")
        pipes, processes = [], []
        for index in range(ranks):
            mine, theirs = spawn.Pipe(duplex=False)
            process = spawn.Process(target=rank, args=(index, ranks, backend, fd, str(store), theirs))
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        column = columns[backend] = {}
        for _ in SIZES:
            for pipe in pipes:
                size, micros = pipe.recv()
                column[size] = max(column.get(size, 0.0), micros)
        for process in processes:
            process.join(10)
        os.close(fd)
        store.unlink(missing_ok=True)
    for size in SIZES:
        print(f"{size:>9}  " + "  ".join(f"{columns[b][size]:9.1f}" for b in columns))


if __name__ == "__main__":
    main()
