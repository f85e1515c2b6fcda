"""Warnings that apply to a plan: the mistakes that practitioners report, each only where it is about to be made."""

from dataclasses import dataclass

from shoal.plan.calc import bubble
from shoal.plan.designs import Design, Plan
from shoal.plan.kv import sequence_curve
from shoal.plan.question import Question, is_processor
from shoal.plan.topology import link_uses
from shoal.specs.sizes import weight_bytes

SLOW_LINK = 100e9
"""Bytes a second: tensor parallelism over less is a known way to slow down (PCIe and networks are below it)."""


@dataclass(frozen=True, slots=True)
class Caution:
    """One warning."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """What must be held, whatever the layout: bytes of weights, and of the cache of the peak's requests."""

    weights: float
    cache: float

    @property
    def ratio(self) -> float:
        return self.cache / self.weights


def footprint(question: Question, design: Design) -> Footprint:
    """Weights and cache as the design stores them, one copy of the weights, every request at its full length."""
    weights = float(weight_bytes(question.model, design.weights.method).total)
    users = design.load * design.replicas
    return Footprint(weights, sequence_curve(question.model, design.kv_dtype).bytes(question.held_tokens) * users)


def cautions(plan: Plan, design: Design) -> tuple[Caution, ...]:
    """What to mind about one design of a plan."""
    question = plan.question
    found = [
        *_links(question, design),
        *_memory(question, design),
        *_precision(question, design),
        *_redundancy(design),
        *_pipeline(design),
        *_certainty(plan, design),
    ]
    return tuple(found)


def _links(question: Question, design: Design) -> list[Caution]:
    found = []
    for use in link_uses(question, design):
        if use.axis == "tp" and (not use.inside or use.bandwidth < SLOW_LINK):
            where = "leaves the fast domain" if not use.inside else f"runs over {use.link}"
            text = (
                f"Tensor parallelism {where}: {use.messages} all-reduces a token wait for "
                f"{use.bandwidth / 1e9:,.0f} "
                "GB/s. vLLM measured 16-way TP over slow links 6.6 times slower than TP 8 with PP 2 "
                "(published, 2024)."
            )
            found.append(Caution("slow links", text))
    if design.layout.ep > 1 and any(use.axis == "ep" and not use.inside for use in link_uses(question, design)):
        text = "Expert exchange crosses servers: it needs RDMA, and the busiest expert's device sets the pace."
        found.append(Caution("expert traffic", text))
    return found


def _memory(question: Question, design: Design) -> list[Caution]:
    held = footprint(question, design)
    if held.ratio <= 1.1:
        return []
    text = (
        f"The cache ({held.cache / 1e9:,.0f} GB for all requests at full length) is {held.ratio:.1f} times the "
        "weights "
        f"({held.weights / 1e9:,.0f} GB): sizing for the weights alone would have missed most of the memory."
    )
    found = [Caution("sizing for weights only", text)]
    if not design.weights.native and design.kv_dtype in ("bf16", "fp32"):
        text = (
            f"Weights are converted to {design.weights.name} while the larger cache stays in {design.kv_dtype}: "
            "an fp8 cache would save more."
        )
        found.append(Caution("quantizing the smaller part", text))
    return found


def _precision(question: Question, design: Design) -> list[Caution]:
    found = []
    if not design.weights.native:
        text = (
            f"{design.weights.name} weights are a conversion of the published checkpoint: benchmarks can pass "
            "while "
            "rare answers break. Compare output distributions, not only scores, or use the published precision."
        )
        found.append(Caution("precision", text))
    if design.kv_dtype not in ("bf16", "fp32"):
        found.append(
            Caution("cache precision", f"The {design.kv_dtype} cache is lossy: check long contexts with it.")
        )
    return found


def _redundancy(design: Design) -> list[Caution]:
    if design.spares:
        return []
    pools = [design.replicas] if design.prefill is None else [design.replicas, design.prefill_replicas]
    if min(pools) == 1:
        text = (
            "A pool has a single replica: one failure, or one restart, stops everything. --spares 1 plans for N+1."
        )
        return [Caution("no redundancy", text)]
    left = (min(pools) - 1) * design.capacity
    if left < design.load * design.replicas:
        text = (
            f"With one of {min(pools)} replicas gone the rest cannot hold the peak within the targets. See "
            "--spares."
        )
        return [Caution("no failure headroom", text)]
    return []


def _pipeline(design: Design) -> list[Caution]:
    stages = design.layout.pp
    if stages == 1:
        return []
    flying = max(1, round(design.load))
    share = bubble(stages, flying)
    text = (
        f"{stages} stages with {flying} requests in flight idle at most {share:.0%} of the time (GPipe's "
        "bound); with "
        f"fewer than {4 * stages} in flight, at night say, stages stand idle and a lone request gains nothing."
    )
    return [Caution("pipeline bubbles", text)] if share > 0.02 else []


def _certainty(plan: Plan, design: Design) -> list[Caution]:
    found = []
    if not design.sure:
        text = (
            "The targets are met as estimated, not at the upper end of the intervals: measure before you promise."
        )
        found.append(Caution("uncertain", text))
    for part in design.accelerators:
        vendor = [name for name, f in part.figures if f.kind == "vendor" and name != "devices_per_node"]
        if vendor:
            text = f"Figures of {part.name} from its maker's data sheet: {', '.join(vendor)}. Peaks, not results."
            found.append(Caution("vendor figures", text))
    if design.mixed:
        text = (
            "No measured row has prefill and decode on different accelerators: intervals are wider for it. Both "
            "sides need one network, one engine version and one checkpoint."
        )
        found.append(Caution("mixed hardware", text))
    if is_processor(design.accelerator):
        text = (
            "No processor was among the measured rows that the time model was fitted to: run `shoal plan "
            "calibrate`."
        )
        found.append(Caution("processor", text))
    return found
