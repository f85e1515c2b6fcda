"""What can't be true: figures below what the hardware allows, or counts that contradict one another.

Floors (per replica of `devices`): a decode step reads every active weight once, so ITL ≥ weight bytes / bandwidth;
a forward pass costs at least 2 FLOPs a parameter and token, so tokens/s ≤ FLOP/s / (2 · active parameters).
Speculative decoding gives several tokens a step, which an event then carries together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.specs.errors import SpecError
from shoal.specs.quantities import parse_quantity
from shoal.specs.traffic import positive
from shoal.workload.records import Record
from shoal.workload.summary import Summary

_LATE_SHARE = 0.1
"""Schedule delay over this share of TTFT: the generator is part of what was measured."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the endpoint runs, as far as floors need it; totals over one replica's devices."""

    name: str
    weight_bytes: float
    """Bytes of weights that a decode step of one sequence reads."""
    active_parameters: float
    bandwidth: float
    """Bytes per second."""
    flops: float
    """FLOP/s, dense, in the dtype that the weights are computed in."""
    replicas: int = 1

    @property
    def itl(self) -> float:
        """No gap between single tokens of one sequence is shorter, seconds."""
        return self.weight_bytes / self.bandwidth

    @property
    def tokens_per_second(self) -> float:
        """No more tokens, prompt and output together, are computed per second."""
        return self.replicas * self.flops / (2 * self.active_parameters)


@dataclass(frozen=True, slots=True)
class HardwareOptions:
    """Names and figures as a user gives them."""

    model: str | None = None
    """A catalogued model, config.json, GGUF file or directory."""
    gpu: str | None = None
    devices: int = 1
    replicas: int = 1
    bandwidth: str | None = None
    """Over the catalogue's, a device: "40 GB/s"."""
    dtype: str | None = None
    """How weights are stored; None: as the checkpoint."""


def hardware(options: HardwareOptions) -> Hardware | None:
    """What the floors need, or None where no hardware was named; `SpecError` for half a description."""
    from shoal.plan.api import find_model
    from shoal.specs.catalog import load_catalog
    from shoal.specs.sizes import stored_groups, weight_bytes
    from shoal.specs.tensors import parameter_counts

    if options.gpu is None and options.bandwidth is None:
        return None
    if options.model is None:
        raise SpecError(
            "floor_model", None, "the model that the endpoint serves, where --gpu or --bandwidth is given"
        )
    if options.gpu is None:
        raise SpecError("gpu", None, "a catalogued accelerator, e.g. h100 or cpu")
    positive("devices", options.devices, 100_000)
    positive("replicas", options.replicas, 100_000)
    spec = find_model(options.model)
    device = load_catalog().accelerator(options.gpu)
    bandwidth = parse_quantity(options.bandwidth, "bytes/s", "bandwidth") if options.bandwidth else device.bandwidth
    groups = stored_groups(spec, options.dtype)
    active = float(sum(g.active_total() for g in groups))
    # The input embedding is looked up, not read whole, unless the output layer is the same matrix.
    embedding = 0.0 if spec.tied_embeddings else float(weight_bytes(spec, options.dtype).embedding)
    rate = max(rate for _, rate in device.rates)
    return Hardware(
        name=f"{spec.name} on {options.devices} x {device.name}",
        weight_bytes=max(1.0, active - embedding),
        active_parameters=parameter_counts(spec).active_without_embedding,
        bandwidth=bandwidth * options.devices,
        flops=rate * options.devices,
        replicas=options.replicas,
    )


def warnings(summary: Summary, records: Sequence[Record], machine: Hardware | None = None) -> tuple[str, ...]:
    """One line for everything that makes the figures doubtful."""
    return (*_generator(summary), *_counts(records), *(_floors(summary, machine) if machine else ()))


def _generator(summary: Summary) -> list[str]:
    found = []
    delay, ttft = summary.schedule_delay, summary.ttft
    if delay is not None and ttft is not None:
        late, first = delay.at(0.99).value, ttft.at(0.5).value
        if late > 0.002 and late > _LATE_SHARE * first:
            found.append(
                f"the load generator was late: p99 schedule delay {late * 1e3:.1f} ms against a median TTFT of "
                f"{first * 1e3:.1f} ms; give it a processor of its own"
            )
    asked, sent = summary.requested_rate, summary.sent_rate
    if asked is not None and sent is not None and summary.requests >= 100 and abs(sent / asked - 1) > 0.25:
        found.append(f"requests were sent at {sent:.3g}/s where {asked:.3g}/s were asked for")
    found += _queue(summary)
    if summary.failed:
        found.append(f"{summary.failed} of {summary.requests} requests failed: latencies are those of the others")
    if summary.tokens_per_event > 1.5:
        found.append(f"an event carries {summary.tokens_per_event:.1f} tokens on average: ITL is no time per token")
    return found


def _queue(summary: Summary) -> list[str]:
    run = summary.backlog
    if run is None or summary.partial or run.kept_up():
        return []
    if run.short:
        return ["the run is too short to tell whether the server keeps up: it needs more requests at this rate"]
    return [
        f"requests were completed at {run.completed:.3g}/s and arrived at {run.arrived:.3g}/s: the queue grew, and "
        "a longer run has longer latencies"
    ]


def _counts(records: Sequence[Record]) -> list[str]:
    found = []
    wrong = [r for r in records if r.ok and r.asked_prompt and r.prompt_tokens not in (None, r.asked_prompt)]
    if wrong:
        r = wrong[0]
        found.append(
            f"{len(wrong)} prompts were counted otherwise than sent ({r.prompt_tokens} for {r.asked_prompt} tokens)"
        )
    if any(r.cached_tokens is not None and r.cached_tokens > (r.prompt_tokens or 0) for r in records if r.ok):
        found.append("the server reports more cached tokens than prompt tokens")
    if any(r.ok and len(r.events) > r.output_tokens for r in records if r.output_counted):
        found.append("some answers came in more events than they have tokens")
    return found


def _floors(summary: Summary, machine: Hardware) -> list[str]:
    found = []
    if summary.itl is not None:
        gap = summary.itl.at(0.5).value * (1 / max(1.0, summary.tokens_per_event))
        if gap < machine.itl:
            found.append(
                f"median ITL {gap * 1e3:.3g} ms a token is below the floor of {machine.itl * 1e3:.3g} ms for "
                f"{machine.name} ({machine.weight_bytes / 1e9:.3g} GB ÷ {machine.bandwidth / 1e9:.4g} GB/s): "
                "speculative decoding, several tokens an event, or another machine than named"
            )
    cached = (summary.cached_tokens or 0) / summary.window if summary.window > 0 else 0.0
    computed = summary.output_rate.value + max(0.0, summary.prompt_rate - cached)
    if computed > machine.tokens_per_second:
        found.append(
            f"{computed:,.0f} computed tokens/s are above the ceiling of {machine.tokens_per_second:,.0f} for "
            f"{machine.name}: prefix hits that the server doesn't report, or another machine than named"
        )
    return found
