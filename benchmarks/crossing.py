"""Tensor or pipeline parallelism over a link: tokens a second of one replica whose ranks lie on several hosts.

What a rank computes is measured on one rank; what travels comes from `step_traffic`, which the engine's counters
agree with; what that takes comes from a measured link. Nothing is fitted to a layout's own measurement.

    tensor     command ─ every rank: 1/tp of the step, 2 all-reduces a layer ─ logits to the rank that samples
    pipeline   command ─ stage 0 ─ hand-over ─ stage 1 ─ result back;   micro-batches follow one another
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.plan.collectives import Traffic, step_traffic
from shoal.plan.memory import stage_weights
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.stages import layer_costs, stage_layers


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Between two ranks, as their collectives see it: with software's share, not the wire's alone."""

    reduce: float
    """Seconds of an all-reduce of two ranks whose message is almost empty."""
    send: float
    """Seconds until an almost empty message is with the other rank."""
    bandwidth: float
    """Bytes a second in one direction."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Decode steps of the whole model on one rank that has one core."""

    seconds: Sequence[tuple[int, float]]
    """(rows, seconds of the step), by rows; between two of them a straight line is drawn."""
    fixed: float
    """Of these, seconds that cutting matrices doesn't shorten: calls, norms, Python. That of a model equally deep
    and almost without width."""
    crowding: float = 1.0
    """Factor on a step while every core computes: they share memory's bandwidth."""

    def at(self, rows: float) -> float:
        """Seconds of a step of `rows`; beyond what was measured, in proportion to the last."""
        known = [r for r, _ in self.seconds]
        above = bisect_left(known, rows)
        if above == 0:
            return self.seconds[0][1]
        r0, s0 = self.seconds[above - 1]
        if above == len(known):
            return s0 * rows / r0
        r1, s1 = self.seconds[above]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the ranks are: neighbours share a host, as many as it holds."""

    ranks: int
    """Of one host."""
    inside: MeasuredLink
    across: MeasuredLink
    cores: int
    """Of all hosts together. Ranks that compute at the same time share them."""

    def link(self, span: int) -> MeasuredLink:
        """What a run of `span` neighbouring ranks from a host's first on talks over."""
        return self.inside if span <= self.ranks else self.across


@dataclass(frozen=True, slots=True)
class Decoding:
    """A layout's decode at a steady number of streams."""

    layout: Layout
    rate: float
    """Tokens a second, all streams."""
    token: float
    """Seconds from one token of a stream to its next."""
    compute: float
    """Of these, seconds of the step's computation."""
    communication: float
    """Of these, seconds on links."""


def decoding(
    model: ModelSpec, layout: Layout, streams: int, step: MeasuredStep, site: Site, element_bytes: float = 4.0
) -> Decoding:
    """Predict `layout` (of `tp` and `pp`). `element_bytes` are those of an activation.

    Raises SpecError for other axes, and for more stages than layers.
    """
    if (layout.dp, layout.cp, layout.ep) != (1, 1, 1):
        raise SpecError("layout", layout.label(), "a layout of tp and pp alone")
    if streams < 1:
        raise SpecError("streams", streams, "1 or more")
    tp, pp = layout.tp, layout.pp
    flying = min(pp, streams)
    rows = -(-streams // flying)
    # Every rank of tp computes at once, and so do the stages that have a micro-batch.
    busy = step.crowding if tp * flying > 1 else 1.0
    whole = step.at(rows)
    share = _largest_share(model, tp)
    cut = (step.fixed + (whole - step.fixed) * share) * busy
    near, far = site.link(layout.span("tp")), site.link(layout.span("pp"))
    costs = layer_costs(model)
    stages = []
    for index, layers in enumerate(stage_layers(model, pp)):
        part = sum(costs[layer] for layer in layers) / sum(costs)
        sent = _seconds(_within(model, len(layers), rows, tp, element_bytes, index == 0, index == pp - 1), near, tp)
        stages.append((cut * part, sent))
    hop = point_to_point(rows * model.hidden * element_bytes, far.send, far.bandwidth) if pp > 1 else 0.0
    world = site.link(layout.world)
    # The first stage is with the scheduler; where tp leaves the host, its other ranks wait for their command, and
    # where pp does, the result comes back.
    ends = (near.send if tp > 1 else 0.0) + (world.send if pp > 1 else 0.0)
    compute = sum(c for c, _ in stages)
    communication = sum(s for _, s in stages) + (pp - 1) * hop + ends
    latency = compute + communication
    slowest = max(c + s for c, s in stages)
    work = flying * sum(c for c, _ in stages) * tp
    token = max(latency, flying * slowest, work / site.cores)
    return Decoding(layout, streams / token, token, compute, communication)


def one_shot_all_reduce(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds: α + (n−1)·S/B. Every rank reads everyone's message: fewest waits, most bytes."""
    return 0.0 if ranks == 1 else latency + (ranks - 1) * size / bandwidth


def point_to_point(size: float, latency: float, bandwidth: float) -> float:
    """Seconds: α + S/B."""
    return latency + size / bandwidth


def _largest_share(model: ModelSpec, tp: int) -> float:
    """Part of the model's weights on the rank that has most of them: whole KV groups are dealt."""
    return stage_weights(model, Layout(tp=tp))[0] / stage_weights(model, Layout())[0]


def _within(
    model: ModelSpec, layers: int, rows: int, tp: int, element_bytes: float, first: bool, last: bool
) -> list[Traffic]:
    """What one stage's ranks exchange in a step."""
    traffic = step_traffic(
        model.hidden, layers, rows, tp=tp, element_bytes=element_bytes, vocab=model.vocab, sampled=rows
    )
    absent = {"embedding_reduce": not first, "logits": not last}
    return [t for t in traffic if not absent.get(t.kind, False)]


def _seconds(traffic: Sequence[Traffic], link: MeasuredLink, ranks: int) -> float:
    total = 0.0
    for item in traffic:
        if item.kind == "logits":
            each = point_to_point(item.payload * (ranks - 1), link.send, link.bandwidth)
        else:
            each = one_shot_all_reduce(ranks, item.payload, link.reduce, link.bandwidth)
        total += item.messages * each
    return total
