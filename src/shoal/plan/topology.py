"""Which traffic runs over which wire: the collectives of a decode step matched with the links they cross."""

from dataclasses import dataclass

from shoal.plan.collectives import step_traffic
from shoal.plan.designs import Design
from shoal.plan.question import Question
from shoal.specs.hardware import Link
from shoal.specs.layout import Axis, Layout

KINDS = {
    "all_reduce": "all-reduces",
    "point_to_point": "sends between stages",
    "dispatch": "expert dispatches",
    "combine": "expert combines",
}


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One kind of traffic of one axis, for one decode step of one replica."""

    axis: str
    kind: str
    link: str
    bandwidth: float
    """Bytes a second in each direction."""
    inside: bool
    """It stays inside the scale-up domain."""
    messages: int
    """Of a step."""
    bytes_per_token: float
    """What one rank sends for one output token."""

    @property
    def sentence(self) -> str:
        where = "inside the fast domain" if self.inside else "across servers"
        size = f"{self.bytes_per_token / 1e3:,.0f} KB" if self.bytes_per_token < 1e6 else (
            f"{self.bytes_per_token / 1e6:,.1f} MB"
        )  # fmt: skip
        return (
            f"{self.axis}: {self.messages} {KINDS.get(self.kind, self.kind)} a step, {size} a token, over "
            f"{self.link} ({self.bandwidth / 1e9:,.0f} GB/s a direction), {where}."
        )


def link_uses(question: Question, design: Design) -> tuple[LinkUse, ...]:
    """The traffic of a design's (decoding) replica; empty for one device. The chattiest first."""
    layout, model = design.layout, question.model
    moe = [layer.ffn for layer in model.layers if layer.ffn.kind == "moe"]
    router = moe[0].router if moe else None
    traffic = step_traffic(
        model.hidden, len(model.layers), 1, tp=layout.tp, pp=layout.pp, ep=layout.ep if layout.dp > 1 else 1,
        moe_layers=len(moe), top_k=router.top_k if router else 0, dispatch_bytes=1.0,
    )  # fmt: skip
    uses = []
    for item in traffic:
        axis: Axis = "tp" if item.axis == "tp" else "pp" if item.axis == "pp" else "ep"
        link, inside = _link(design, layout, axis)
        if link is not None:
            uses.append(LinkUse(item.axis, item.kind, link.name, link.bandwidth, inside, item.messages, item.bytes))
    return tuple(sorted(uses, key=lambda use: -use.messages))


def _link(design: Design, layout: Layout, axis: Axis) -> tuple[Link | None, bool]:
    accelerator = design.accelerator
    domain = accelerator.domain
    inside = layout.span(axis) <= domain
    return (accelerator.scale_up if inside else accelerator.nic), inside
