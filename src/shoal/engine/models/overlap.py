"""Whether experts' rows travel in two halves: decided by timing both ways at start-up, on this model and this link.

Halves cost every message twice and products of half as many rows; what they hide is the time on the wire. Which
is more depends on rows, link and processor, so a layer is run both ways at several numbers of rows. All ranks add
up their times and so come to the same answer.
"""

import time
from collections.abc import Sequence
from typing import Literal

import torch

from shoal.engine.layers.moe import MoeFfn
from shoal.engine.models.decoder import CausalLM
from shoal.engine.parallel.mesh import Mesh

Overlap = Literal["auto", "on", "off"]
ROWS = (8, 32, 128, 512)
"""Of each rank, that `auto` tries."""
GAIN = 0.95
"""Of the time without halves: less of a gain may be noise."""
_REPEATS = 3


@torch.inference_mode()
def autotune_overlap(
    model: CausalLM, mesh: Mesh, overlap: Overlap, device: torch.device, max_rows: int
) -> int | None:
    """Set `overlap_from` of this stage's layers and return it.

    Every rank of the mesh calls it before serving. `max_rows`: rows of a step at most, per rank.
    """
    layers = [layer.mlp for layer in model.layers if isinstance(layer.mlp, MoeFfn)]
    found: int | None = None
    if overlap == "on":
        found = 0
    elif overlap == "auto" and mesh.ep.is_async:
        sizes = [rows for rows in ROWS if rows <= max_rows] or [max_rows]
        seconds = torch.zeros(len(sizes), 2, device=device)
        if layers:
            inputs = [torch.randn(rows, model.spec.hidden).to(device, model.dtype) for rows in sizes]
            seconds += torch.tensor([_both_ways(layers[0], x) for x in inputs], device=device)
        found = _threshold(sizes, mesh.world.all_reduce(seconds).tolist(), mesh, layers)
    for ffn in layers:
        if ffn.exchange is not None:
            ffn.exchange.overlap_from = found
            ffn.take_load(0)
    mesh.traffic.reset()
    return found


def _both_ways(ffn: MoeFfn, x: torch.Tensor) -> list[float]:
    """Seconds of the layer on x, rows whole and in halves: the least of a few runs."""
    assert ffn.exchange is not None
    found: list[float] = []
    for overlap_from in (None, 0):
        ffn.exchange.overlap_from = overlap_from
        runs: list[float] = []
        for _ in range(1 + _REPEATS):
            ffn.ep.barrier()
            start = time.perf_counter()
            ffn(x)
            ffn.ep.barrier()
            runs.append(time.perf_counter() - start)
        found.append(min(runs[1:]))
    return found


def _threshold(
    sizes: Sequence[int], seconds: list[list[float]], mesh: Mesh, layers: Sequence[MoeFfn]
) -> int | None:
    """Choices of all ranks from which halves were faster, up to the largest size that was tried."""
    wins = [halves < GAIN * whole for whole, halves in seconds]
    first = len(wins)
    while first and wins[first - 1]:
        first -= 1
    if first == len(wins) or not layers:
        return None
    if mesh.etp.size > 1:
        # Groups of ep that hold slices of the same experts have rows of their own, and must decide alike.
        return 0 if first == 0 else None
    router = layers[0].spec.router
    assert router is not None
    return max(1, sizes[first] // mesh.tp.size) * mesh.ep.size * router.top_k
