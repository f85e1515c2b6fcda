"""Where the tensors of a checkpoint go, and which part of each this rank holds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from shoal.engine.errors import WeightsError
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


PIECE = 1 << 20
"""Numbers of a matrix that are read in one go: until they are converted they are in memory besides the model."""
PIECE_ROWS = 768
"""Pieces are of multiples of so many rows: whole heads of any common width (64, 96, 128, 256)."""


class Place(Protocol):
    """What is filled: a view into a parameter, or some outputs of a quantized weight."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def copy_(self, source: Tensor, /) -> object: ...
    def narrow(self, dimension: int, start: int, length: int, /) -> "Place": ...


@dataclass(frozen=True, slots=True)
class Target:
    """A place of a model's parameters that one tensor of a checkpoint, or this rank's part of it, fills."""

    place: Place
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
        for ranges, place in self._pieces(shape):
            self._fill(name, read(ranges), place)

    def _fill(self, name: str, tensor: Tensor, place: Place) -> None:
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise WeightsError(
                f"found {tensor.dtype}, expected float32, float16 or bfloat16: quantized checkpoints are not read",
                tensor=name,
            )
        if self.offset:
            tensor = tensor.to(place.dtype) + self.offset
        place.copy_(tensor)

    def _pieces(self, shape: tuple[int, ...]) -> Iterator[tuple[Ranges, Place]]:
        """What to read, and where to put it, a part of a large matrix at a time."""
        ranges = tuple(span.own for span in self.spans)
        if len(shape) != 2 or not self.place.shape.numel():
            yield ranges, self.place
            return
        rows, columns = self.place.shape
        own = ranges[0] if ranges else range(rows)
        step = max(1, PIECE // columns // PIECE_ROWS) * PIECE_ROWS
        for start in range(0, rows, step):
            count = min(step, rows - start)
            part = range(own.start + start, own.start + start + count)
            yield (part, *ranges[1:]), self.place.narrow(0, start, count)


def cutter(tensor: Tensor) -> Callable[[Ranges], Tensor]:
    """Reads parts of a tensor that is in memory."""
    return lambda ranges: cut(tensor, ranges)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """A parameter whose memory is not touched before loading."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
