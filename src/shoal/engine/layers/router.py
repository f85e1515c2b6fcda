"""Which experts a row goes to, and with what weight."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.loading import Target, empty
from shoal.specs.model import RouterSpec


@dataclass(frozen=True, slots=True)
class Routing:
    """The choice for T rows, best expert first."""

    experts: Tensor
    """[T, k] int64"""
    weights: Tensor
    """[T, k] float32"""


class Router(nn.Module):
    """x [T, H] -> Routing.

    Scores are worked out in fp32 whatever the compute dtype: which experts are chosen must not hang on a rounding.
    """

    def __init__(self, spec: RouterSpec, hidden: int, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.weight = empty((spec.experts, hidden), torch.float32, device)
        self.bias = empty((spec.experts,), torch.float32, device) if spec.bias else None
        self.correction = empty((spec.experts,), torch.float32, device) if spec.correction_bias else None

    def forward(self, x: Tensor) -> Routing:
        return choose_experts(ops.linear(x.float(), self.weight, self.bias), self.spec, self.correction)

    def targets(self, name: str) -> dict[str, Target]:
        found = {f"{name}.weight": Target(self.weight)}
        if self.bias is not None:
            found[f"{name}.bias"] = Target(self.bias)
        if self.correction is not None:
            found[f"{name}.e_score_correction_bias"] = Target(self.correction)
        return found


def choose_experts(logits: Tensor, spec: RouterSpec, correction: Tensor | None = None) -> Routing:
    """The k experts of each row of logits [T, E], fp32.

    `correction` [E] is added to the scores for choosing and not for weighing (arXiv:2412.19437, eq. 16). With
    groups, only experts of a row's best groups can be chosen (DeepSeek-V2, arXiv:2405.04434, section 2.1.3).
    """
    if spec.softmax_after_top_k:
        best, experts = logits.topk(spec.top_k, -1)
        return Routing(experts, best.softmax(-1) * spec.scaling)
    scores = logits.softmax(-1) if spec.scoring == "softmax" else logits.sigmoid()
    choice = scores if correction is None else scores + correction
    if spec.groups > 1:
        choice = choice.masked_fill(_outside(choice, spec), -torch.inf)
    experts = choice.topk(spec.top_k, -1).indices
    weights = scores.gather(-1, experts)
    if spec.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return Routing(experts, weights * spec.scaling)


def _outside(choice: Tensor, spec: RouterSpec) -> Tensor:
    """[T, E]: the experts that aren't in one of a row's best groups."""
    grouped = choice.view(len(choice), spec.groups, spec.experts // spec.groups)
    scores = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2, -1).values.sum(-1)
    hidden = torch.ones_like(scores, dtype=torch.bool)
    hidden.scatter_(-1, scores.topk(spec.top_groups, -1).indices, False)
    return hidden[..., None].expand_as(grouped).flatten(-2)
