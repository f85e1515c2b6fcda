"""Groups through torch.distributed: Gloo for CPUs of several hosts, NCCL for GPUs.

Gloo's and NCCL's own all-reduces add up in an order of their choice. An all-reduce here is
an all-gather and a sum in the order of the ranks, so that results are those of shared memory, bit for bit, at the
price of n/2 times the bytes for n ranks.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.engine.parallel.group import CollectiveTimeout, Work, gathered_extents
from shoal.engine.parallel.traffic import TrafficCounters

T = TypeVar("T")


class TorchGroup:
    """A `Group` over a torch.distributed process group."""

    is_async = True

    def __init__(
        self,
        axis: str,
        ranks: Sequence[int],
        index: int,
        group: dist.ProcessGroup,
        traffic: TrafficCounters,
        device: torch.device,
    ) -> None:
        self.axis = axis
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.index = index
        self.waited = 0.0
        """Seconds inside collectives: what of it is waiting, these backends don't tell."""
        self._group: dist.ProcessGroup | None = group
        self._traffic = traffic
        self._device = device

    def all_reduce(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        self._run("all_reduce", lambda: dist.all_gather(parts, tensor, group=self._group))
        wide = torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype
        total = parts[0].to(wide)
        for part in parts[1:]:
            total += part.to(wide)
        tensor.copy_(total)
        self._traffic.add(self.axis, "all_reduce", tensor.nbytes)
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        dim = dim % tensor.dim()
        extents = gathered_extents(self, tensor, dim, sizes)
        longest = max(extents)
        rest = [n for axis, n in enumerate(tensor.shape) if axis != dim]
        # These backends gather equal shapes only, so shorter shares are padded.
        padded = tensor.new_zeros((longest, *rest))
        padded[: extents[self.index]] = tensor.movedim(dim, 0)
        parts = [torch.empty_like(padded) for _ in self.ranks]
        self._run("all_gather", lambda: dist.all_gather(parts, padded, group=self._group))
        self._traffic.add(self.axis, "all_gather", tensor.nbytes)
        whole = torch.cat([part[:extent] for part, extent in zip(parts, extents, strict=True)])
        return whole.movedim(0, dim).contiguous()

    def all_to_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if len(tensors) != self.size:
            raise ValueError(f"all_to_all over {self.axis}: {len(tensors)} tensors for {self.size} ranks")
        packed = torch.cat(list(tensors))
        rows = [len(t) for t in tensors]
        mine = torch.tensor(rows, device=packed.device)
        counts = torch.empty_like(mine)
        self._run("all_to_all", lambda: dist.all_to_all_single(counts, mine, group=self._group))
        return self._start(packed, rows, counts.tolist(), tensors[self.index].nbytes).wait()

    def start_all_to_all(self, tensors: Sequence[Tensor], arriving: Sequence[int]) -> Work:
        if not len(tensors) == len(arriving) == self.size:
            raise ValueError(
                f"all_to_all over {self.axis}: {len(tensors)} tensors, {len(arriving)} counts for {self.size} ranks"
            )
        rows = [len(t) for t in tensors]
        return self._start(torch.cat(list(tensors)), rows, list(arriving), tensors[self.index].nbytes)

    def _start(self, packed: Tensor, rows: list[int], arriving: list[int], own_bytes: int) -> Work:
        out = packed.new_empty((sum(arriving), *packed.shape[1:]))
        work = self._run(
            "all_to_all",
            lambda: dist.all_to_all_single(out, packed, arriving, rows, group=self._group, async_op=True),
        )
        self._traffic.add(self.axis, "all_to_all", packed.nbytes, packed.nbytes - own_bytes)

        def wait() -> None:
            if work is not None:
                self._run("all_to_all", work.wait)

        return _AsyncWork(wait, packed, out, arriving)

    def send(self, tensor: Tensor, dst: int) -> None:
        tensor = tensor.contiguous()
        self._run("send", lambda: dist.send(tensor, self.ranks[dst], group=self._group), self.ranks[dst])
        self._traffic.add(self.axis, "send", tensor.nbytes)

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        self._run("recv", lambda: dist.recv(tensor, self.ranks[src], group=self._group), self.ranks[src])
        return tensor

    def barrier(self) -> None:
        self._run("barrier", lambda: dist.barrier(group=self._group))
        self._traffic.add(self.axis, "barrier", 0)

    def close(self) -> None:
        self._group = None

    def _run(self, operation: str, body: Callable[[], T], missing: int | None = None) -> T:
        start = time.perf_counter()
        try:
            return body()
        except (dist.DistError, RuntimeError) as error:
            # A time-out and a connection that broke look alike here: in both, another rank did not come.
            raise CollectiveTimeout(self.axis, operation, missing, time.perf_counter() - start) from error
        finally:
            self.waited += time.perf_counter() - start


class _AsyncWork:
    """An all-to-all that another thread or device carries out."""

    def __init__(self, wait: Callable[[], None], packed: Tensor, out: Tensor, arriving: list[int]) -> None:
        self._wait = wait
        self._packed: Tensor | None = packed
        """Kept alive until it has been sent."""
        self._out = out
        self._arriving = arriving

    def wait(self) -> list[Tensor]:
        self._wait()
        self._packed = None
        return list(torch.split(self._out, self._arriving))
