"""What every kind of weight file offers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Ranges = tuple[range, ...]
"""Which indices of a tensor's leading dimensions; dimensions left out are whole. Steps are one."""


class WeightSource(Protocol):
    """Tensors under Hugging Face names. Data stay on disk, memory-mapped, until asked for."""

    @property
    def bytes_read(self) -> int:
        """Bytes of tensor data taken from the files so far."""
        ...

    def names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises WeightsError for a name that isn't there."""
        ...

    def read(self, name: str, ranges: Ranges = ()) -> Tensor:
        """One tensor, or a part of it; no more than the part is read, where the file's layout lets it be."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All, one at a time: drop a tensor before taking the next, and the model is in memory once."""
        ...


def cut(tensor: Tensor, ranges: Ranges) -> Tensor:
    """A view of a part."""
    return tensor[tuple(slice(r.start, r.stop) for r in ranges)] if ranges else tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """A tensor of that shape; `read` is given a range for every dimension and makes only that part."""

    shape: tuple[int, ...]
    read: Callable[[Ranges], Tensor]
