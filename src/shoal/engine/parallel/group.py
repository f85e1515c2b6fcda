"""What layers see of the other ranks of an axis.

Every rank of a group calls the same operations in the same order. An operation that waits has a deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from shoal.engine.errors import EngineError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CollectiveTimeout(EngineError):
    """A rank of the group did not come within the deadline; the group cannot be used any more."""

    def __init__(self, axis: str, operation: str, missing: int | None, seconds: float) -> None:
        whom = "another rank" if missing is None else f"rank {missing}"
        super().__init__(f"{operation} over {axis} waited {seconds:g} s for {whom}")
        self.axis = axis
        self.missing = missing
        """Rank of the world that did not come; None if the backend cannot tell."""


class Work(Protocol):
    """An all-to-all that has begun."""

    def wait(self) -> list[Tensor]:
        """Return the rows that arrived, by source. Called once."""
        ...


class CompletedWork:
    """An all-to-all that is over."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        return self._tensors


class Group(Protocol):
    """The ranks of one axis that this rank belongs to.

    Tensors are dense. Results don't alias what other ranks hold. `index` and every source or destination count
    within the group, 0 … size-1. Raises CollectiveTimeout when a rank doesn't come.
    """

    @property
    def axis(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def index(self) -> int:
        """This rank's place in the group."""
        ...

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks in the world, by index."""
        ...

    @property
    def waited(self) -> float:
        """Seconds spent waiting for the others so far."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, added up in the order of their indices: the same bits on every rank.

        float32, bfloat16 (summed in float32, rounded once) or int64. A contiguous argument is overwritten and
        returned; use the result.
        """
        ...

    def all_gather(self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        """All ranks' tensors, concatenated along `dim` in order of index.

        `sizes`: every rank's extent along `dim`; None: all as this rank's. Other dimensions are equal everywhere.
        """
        ...

    def all_to_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`tensors[i]`, of any number of rows, goes to index i; what comes back is by source.

        Trailing dimensions and dtype are equal everywhere. Row counts need not be known to the receiver.
        """
        ...

    @property
    def is_async(self) -> bool:
        """Return whether `start_all_to_all` returns before the rows have arrived."""
        ...

    def start_all_to_all(self, tensors: Sequence[Tensor], arriving: Sequence[int]) -> Work:
        """Begin an `all_to_all` of which this rank knows what comes: `arriving[i]` rows from index i.

        Other operations may follow before `wait`, in the same order on every rank. `tensors` must not change
        until then.
        """
        ...

    def send(self, tensor: Tensor, dst: int) -> None:
        """Point to point, in order. May return before the receiver has it; never depends on another sender."""
        ...

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int) -> Tensor:
        """The next tensor that index `src` sent; shape and dtype are those of the sender's."""
        ...

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        ...

    def close(self) -> None:
        """Let go of memory and connections; nothing may be called after."""
        ...


def gathered_extents(group: Group, tensor: Tensor, dim: int, sizes: Sequence[int] | None) -> list[int]:
    """Every rank's extent along `dim` in an all-gather. Raises ValueError where `sizes` are not this tensor's."""
    extents = [tensor.shape[dim]] * group.size if sizes is None else list(sizes)
    if len(extents) != group.size or extents[group.index] != tensor.shape[dim]:
        raise ValueError(
            f"all_gather over {group.axis}: sizes {extents} of {group.size} ranks, "
            f"{tensor.shape[dim]} of which at index {group.index}"
        )
    return extents


class SoloGroup:
    """A group of one: does nothing and counts nothing."""

    size = 1
    index = 0
    waited = 0.0
    is_async = False

    def __init__(self, axis: str, rank: int = 0) -> None:
        self.axis = axis
        self.ranks: tuple[int, ...] = (rank,)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        return tensor

    def all_to_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def start_all_to_all(self, tensors: Sequence[Tensor], arriving: Sequence[int]) -> Work:
        return CompletedWork(list(tensors))

    def send(self, tensor: Tensor, dst: int) -> None:
        raise ValueError(f"rank {self.ranks[0]} is alone on {self.axis}; there is nobody to send to")

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int) -> Tensor:
        raise ValueError(f"rank {self.ranks[0]} is alone on {self.axis}; there is nobody to receive from")

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None
