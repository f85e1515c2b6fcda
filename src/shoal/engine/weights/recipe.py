"""How one plain tensor is made of what a checkpoint stores."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from shoal.engine.weights.source import Ranges


@dataclass(frozen=True, slots=True)
class Recipe:
    """A tensor of that shape; `read` is given a range for every dimension and makes only that part."""

    shape: tuple[int, ...]
    read: Callable[[Ranges], Tensor]
