"""Where the tensors of a checkpoint go."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.engine.weights.errors import WeightsError


@dataclass(frozen=True, slots=True)
class Target:
    """A place of a model's parameters that one tensor of a checkpoint fills."""

    place: Tensor
    """A view into a parameter."""
    offset: float = 0.0
    """Added while loading: 1 for norm weights that are stored as an offset from one."""

    def fill(self, name: str, tensor: Tensor) -> None:
        """Convert and copy. Raises WeightsError for another shape or for numbers that aren't floating point."""
        if tensor.shape != self.place.shape:
            raise WeightsError(
                f"found shape {tuple(tensor.shape)}, expected {tuple(self.place.shape)}: "
                "the weights belong to another config",
                tensor=name,
            )
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise WeightsError(
                f"found {tensor.dtype}, expected float32, float16 or bfloat16: quantized checkpoints are not read",
                tensor=name,
            )
        if self.offset:
            tensor = tensor.to(self.place.dtype) + self.offset
        self.place.copy_(tensor)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """A parameter whose memory is not touched before loading."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
