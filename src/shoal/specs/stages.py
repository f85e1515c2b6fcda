"""Which layers each pipeline stage holds: contiguous, and the costliest stage as cheap as can be.

    balance([5, 1, 1, 1], 2)  ->  0 | 1 2 3

The engine assigns layers to its ranks by this rule and the planner sizes them by it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from shoal.specs.errors import SpecError
from shoal.specs.model import ModelSpec
from shoal.specs.tensors import tensor_groups

StageRule = Literal["even", "cost"]
"""How an engine assigns layers: as many to each stage, or by what they cost (this module's rule, Shoal's)."""


@lru_cache(maxsize=1024)
def stage_layers(spec: ModelSpec, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage: the stage that reads most matrix elements a token reads as few as can be.

    Raises SpecError (field `pp`) for more stages than layers.
    """
    return balance(layer_costs(spec), stages)


@lru_cache(maxsize=256)
def layer_costs(spec: ModelSpec) -> tuple[float, ...]:
    """Matrix elements that a decoded token passes through, by layer; only chosen experts count.

    The embedding's one row is added to the first layer, the head's whole matrix to the last.
    """
    costs = [0.0] * len(spec.layers)
    for group in tensor_groups(spec):
        for layer in group.layers:
            costs[layer] += group.elements * group.active
    costs[0] += spec.hidden
    costs[-1] += spec.vocab * spec.hidden
    return tuple(costs)


def balance(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Contiguous ranges of layers, one a stage and none empty, such that the costliest stage is as cheap as can be.

    `costs` are those of the layers in any unit, with the embedding's added to the first and the head's to the last.
    Among the optimal partitions, later stages are as small as they can be: the last one also samples. Raises
    SpecError (field `pp`) when there are fewer layers than stages, ValueError for a negative cost.
    """
    count = len(costs)
    if not 1 <= stages <= count:
        raise SpecError("pp", stages, f"1 to {count}, the number of layers")
    if any(not cost >= 0 for cost in costs):
        raise ValueError(f"costs must be >= 0: {list(costs)}")
    limit = _least_peak(costs, stages)
    ranges: list[range] = []
    start = 0
    for stage in range(stages):
        last_start = count - (stages - stage - 1)  # leaves a layer for each later stage
        end, total = start + 1, costs[start]
        while end < last_start and total + costs[end] <= limit:
            total += costs[end]
            end += 1
        ranges.append(range(start, end))
        start = end
    return tuple(ranges)


def _least_peak(costs: Sequence[float], stages: int) -> float:
    """The least possible cost of the costliest of `stages` contiguous ranges: O(stages · layers²), layers < 200.

    Sums run left to right from a range's first layer, as `balance` adds them up, so that both round alike.
    """
    count = len(costs)
    best = list(accumulate(costs))  # of layers 0…i with one stage
    for _ in range(1, stages):
        improved = [float("inf")] * count
        for start in range(1, count):
            total = 0.0
            for end in range(start, count):
                total = total + costs[end] if end > start else costs[start]
                improved[end] = min(improved[end], max(best[start - 1], total))
        best = improved
    return best[-1]
