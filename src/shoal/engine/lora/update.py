"""Adding adapters' updates to the rows of a matrix product that want them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine import ops
from shoal.engine.batch import AdapterRows


class ActiveRows:
    """Which rows of the step under way belong to which adapter; shared by all matrices of a model."""

    def __init__(self) -> None:
        self.rows: tuple[AdapterRows, ...] = ()


@dataclass(frozen=True, slots=True)
class UpPart:
    """B of one of the checkpoint's matrices that a product holds one below the other."""

    start: int
    """First of its outputs in the product."""
    rank_start: int
    """First of its rows in `LowRank.down`."""
    up: Tensor
    """[outputs, r], times the scale."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """One adapter's update of one product."""

    down: Tensor
    """[sum of r, inputs]: A of each part, one below the other."""
    parts: tuple[UpPart, ...]

    def add(self, y: Tensor, x: Tensor, rows: Tensor | None) -> None:
        """Add B (A x) to some rows of y, in place; `rows` None: to all."""
        low = ops.linear(x if rows is None else x.index_select(0, rows), self.down)
        for part in self.parts:
            outputs, rank = part.up.shape
            place = y.narrow(1, part.start, outputs)
            update = ops.linear(low.narrow(1, part.rank_start, rank), part.up)
            if rows is None:
                place.add_(update)
            else:
                place.index_add_(0, rows, update)


class LowRankUpdates:
    """The adapters' updates of one product."""

    def __init__(self, active: ActiveRows) -> None:
        self._active = active
        self._updates: dict[int, LowRank] = {}

    def install(self, adapter: int, update: LowRank) -> None:
        self._updates[adapter] = update

    @property
    def wanted(self) -> bool:
        """Whether rows of this step belong to an adapter that updates this product."""
        return any(rows.adapter in self._updates for rows in self._active.rows)

    def add(self, y: Tensor, x: Tensor) -> Tensor:
        """y [T, out] with the updates of x [T, in] added in place."""
        for rows in self._active.rows:
            update = self._updates.get(rows.adapter)
            if update is not None and len(y):
                update.add(y, x, rows.rows)
        return y


def stacked(parts: Sequence[tuple[int, Tensor, Tensor]]) -> LowRank:
    """The update made of (first output, A [r, in], scaled B [out, r]) of each matrix of a product."""
    ups, rank_start = [], 0
    for start, down, up in parts:
        ups.append(UpPart(start, rank_start, up))
        rank_start += len(down)
    # One matrix, so that the product with x reads x once.
    return LowRank(torch.cat([down for _, down, _ in parts]), tuple(ups))
