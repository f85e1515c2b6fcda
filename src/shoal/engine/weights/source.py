"""What every kind of weight file offers."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Tensors under Hugging Face names. Data stay on disk, memory-mapped, until asked for."""

    def names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises WeightsError for a name that isn't there."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """One at a time: drop a tensor before taking the next, and the model is in memory once."""
        ...
