"""What the engine's collectives take between two ranks: the link as they see it.

    python probe.py gloo INDEX HOST PORT     over torch.distributed, rank 0 holding the store at HOST:PORT
    python probe.py shm INDEX FILE           over the shared-memory segment that FILE names

A line asked, a line answered: {"reduce": s, "send": s, "bandwidth": bytes/s}.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from shoal.engine.parallel.distributed import TorchGroup
from shoal.engine.parallel.group import Group
from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.parallel.traffic import TrafficCounters

SMALL, LARGE = 16, 64 * 1024
"""Numbers of four bytes: almost nothing, and enough to see the bandwidth."""
WORK = (1024, 1024)
"""Of a product of matrix and vector, about half a millisecond: what a rank computes between two all-reduces. Ranks
that do nothing else find each other awake, which in a step of a model they don't."""
SECONDS = 0.4
"""Of each measurement, about."""


def median(body: Callable[[], object], agree: Callable[[int], int]) -> float:
    """Median seconds of a call, as often as `SECONDS` allow; both ranks call as often."""
    body()
    start = time.perf_counter()
    body()
    count = agree(min(200, max(5, int(SECONDS / max(time.perf_counter() - start, 1e-6)))))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def probe(group: Group) -> dict[str, float]:
    """Both ranks at once; the figures are rank 0's."""
    small, large = torch.zeros(SMALL), torch.zeros(LARGE)

    def agree(count: int) -> int:
        return int(group.all_reduce(torch.tensor([count if group.index == 0 else 0])).item())

    def there_and_back(tensor: torch.Tensor) -> None:
        if group.index == 0:
            group.send(tensor, 1)
            group.recv((SMALL,), torch.float32, 1)
        else:
            group.recv(tuple(tensor.shape), torch.float32, 0)
            group.send(small, 0)

    matrix, vector = torch.ones(WORK), torch.ones(WORK[1])

    def work_then_reduce() -> None:
        torch.mv(matrix, vector)
        group.all_reduce(small)

    alone = median(lambda: torch.mv(matrix, vector), agree)
    reduce = max(1e-6, median(work_then_reduce, agree) - alone)
    back = median(lambda: there_and_back(small), agree)
    loaded = median(lambda: there_and_back(large), agree)
    return {"reduce": reduce, "send": back / 2, "bandwidth": large.nbytes / max(loaded - back, 1e-9)}


def gloo(index: int, host: str, port: int) -> Group:
    store = dist.TCPStore(host, port, is_master=index == 0, timeout=timedelta(seconds=120))
    dist.init_process_group("gloo", store=store, rank=index, world_size=2, timeout=timedelta(seconds=600))
    world = dist.group.WORLD
    assert world is not None
    return TorchGroup("tp", (0, 1), index, world, TrafficCounters(), torch.device("cpu"))


def shared(index: int, fd: int) -> Group:
    return ShmGroup("tp", (0, 1), index, fd, TrafficCounters(), 600)


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    index = int(sys.argv[2])
    group = (
        gloo(index, sys.argv[3], int(sys.argv[4]))
        if sys.argv[1] == "gloo"
        else shared(index, os.open(sys.argv[3], os.O_RDWR))
    )
    for _ in sys.stdin:
        answers.write(json.dumps(probe(group)) + "\n")


if __name__ == "__main__":
    main()
