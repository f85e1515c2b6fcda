"""Where the tensors of a checkpoint go, and which part of each this rank holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from shoal.engine.weights.errors import WeightsError
from shoal.engine.weights.source import Ranges, cut


@dataclass(frozen=True, slots=True)
class Span:
    """What a rank holds of one dimension of a checkpoint's tensor."""

    whole: int
    own: range

    @classmethod
    def all(cls, whole: int) -> Self:
        return cls(whole, range(whole))

    @classmethod
    def of(cls, whole: int, own: range, width: int = 1) -> Self:
        """Some of `whole` items (heads, say) of `width` elements each."""
        return cls(whole * width, range(own.start * width, own.stop * width))

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True, slots=True)
class Target:
    """A place of a model's parameters that one tensor of a checkpoint, or this rank's part of it, fills."""

    place: Tensor
    """A view into a parameter."""
    offset: float = 0.0
    """Added while loading: 1 for norm weights that are stored as an offset from one."""
    spans: tuple[Span, ...] = ()
    """Of the leading dimensions; those left out are held whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the checkpoint's tensor."""
        return (*(span.whole for span in self.spans), *self.place.shape[len(self.spans) :])

    def fill(self, name: str, shape: tuple[int, ...], read: Callable[[Ranges], Tensor]) -> None:
        """Read, convert and copy this rank's part of a tensor of that shape.

        Raises WeightsError for another shape or for numbers that aren't floating point.
        """
        if shape != self.shape:
            raise WeightsError(
                f"found shape {shape}, expected {self.shape}: the weights belong to another config", tensor=name
            )
        tensor = read(tuple(span.own for span in self.spans))
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise WeightsError(
                f"found {tensor.dtype}, expected float32, float16 or bfloat16: quantized checkpoints are not read",
                tensor=name,
            )
        if self.offset:
            tensor = tensor.to(self.place.dtype) + self.offset
        self.place.copy_(tensor)


def cutter(tensor: Tensor) -> Callable[[Ranges], Tensor]:
    """Reads parts of a tensor that is in memory."""
    return lambda ranges: cut(tensor, ranges)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """A parameter whose memory is not touched before loading."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
