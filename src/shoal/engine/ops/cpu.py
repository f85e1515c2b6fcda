"""What plain torch does better on a CPU when it is asked differently."""

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `reference.linear`. MKL is given few rows the other way round: the weight is the tall operand.

    Measured for 576 × 3072 in fp32 on one AVX-512 core: 0.6 of the time at 1 and 2 rows, 0.8 at 8 and 32; nothing
    to gain from 128 rows on.
    """
    rows = x.shape[0]
    if rows > FEW_ROWS or not x.is_cpu:
        return F.linear(x, weight, bias)
    if rows == 1:
        out = torch.mv(weight, x[0]).unsqueeze(0)
    else:
        out = torch.mm(weight, x.t()).t().contiguous()
    return out if bias is None else out.add_(bias)
