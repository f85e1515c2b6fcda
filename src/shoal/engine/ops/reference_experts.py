"""The products of a mixture-of-experts layer in plain torch: as many rows per expert as there are, no padding."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.engine.ops import cpu

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def grouped_linear(
    x: Tensor,
    counts: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    linear: Linear = cpu.linear,
) -> Tensor:
    """Rows of x [N, in] lie expert by expert, `counts[e]` of expert e; weight [E, out, in] -> [N, out].

    One product per expert that has rows. Raises ValueError unless the counts are those of the rows.
    """
    if sum(counts) != x.shape[0] or len(counts) != weight.shape[0]:
        raise ValueError(
            f"{len(counts)} counts that sum to {sum(counts)}, for {weight.shape[0]} experts and {x.shape[0]} rows"
        )
    out = x.new_empty(x.shape[0], weight.shape[1])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            end = start + count
            out[start:end] = linear(x[start:end], weight[expert], None if bias is None else bias[expert])
            start = end
    return out


def swiglu_oai(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """(up + 1) · gate · sigmoid(alpha · gate) of a [T, 2 · I] row of both halves -> [T, I] (gpt-oss).

    gate is at most `limit`, up within ±limit.
    """
    gate, up = gate_up.chunk(2, -1)
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1).mul_(gate * torch.sigmoid(gate * alpha))
