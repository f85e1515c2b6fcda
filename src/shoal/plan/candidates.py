"""The layouts that could be tried, and the memory gate that most of them do not pass."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.plan.designs import Miss
from shoal.plan.question import Question, WeightOption, kv_options, weight_options
from shoal.plan.sequences import Stored, size_replica
from shoal.specs.catalog import EngineCapability, EngineMemory
from shoal.specs.catalog.capabilities import Role
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.quantization import quantization

_TP = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_PP = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_DP = (2, 4, 8, 9, 12, 16, 18, 24, 32, 36, 48, 64, 72, 96, 128)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that holds the model and at least one request."""

    accelerator: Accelerator
    engine: EngineMemory
    weights: WeightOption
    kv_dtype: str
    layout: Layout
    kv_room: float
    """Bytes for KV on the worst device."""
    batch: int
    """Requests of the question's length that the KV memory holds."""
    largest: int
    """Requests that the engine would run at once: `batch`, or its own limit."""
    sequences: int
    """The same for one attention rank: the most that the engine is told (`max_num_seqs`)."""

    @property
    def label(self) -> str:
        """Layout, accelerator and dtypes, as rejections show them."""
        names = f"{self.weights.name} weights, {self.kv_dtype} cache"
        return f"{self.layout.label()} on {self.accelerator.name} ({names})"


def shapes(model: ModelSpec, accelerator: Accelerator, limit: int) -> list[Layout]:
    """Layouts of one replica worth asking about, of up to `limit` devices.

    Tensor and pipeline degrees combine; attention data parallelism comes with experts spread over all its ranks
    (the deployment that engines offer). Context parallelism is left out: the time model has no data on it.
    """
    node = accelerator.devices_per_node
    domain = accelerator.domain
    moe = any(layer.ffn.kind == "moe" for layer in model.layers)
    heads = {layer.attention.heads for layer in model.layers}
    found: list[Layout] = []
    for tp in _TP:
        # Degrees that no engine would be asked for would only crowd the list of what was rejected.
        if tp & (tp - 1) and any(count % tp for count in heads):
            continue
        for pp in _PP:
            if pp <= len(model.layers):
                found.append(Layout(tp=tp, pp=pp))
                if moe and tp > 1:
                    found.append(Layout(tp=tp, pp=pp, ep=tp))
        if moe and tp in (1, 2, 4, 8):
            found.extend(Layout(tp=tp, dp=dp, ep=tp * dp) for dp in _DP)
    return [layout for layout in found if layout.world <= limit and _whole_nodes(layout, node, domain)]


def _whole_nodes(layout: Layout, node: int, domain: int) -> bool:
    """A replica fills whole servers once it leaves one, and a tensor group does not straddle a part of one."""
    if layout.world <= node:
        return True
    return layout.world % node == 0 and (layout.tp % node == 0 or node % layout.tp == 0 or layout.tp <= domain)


def gate(question: Question) -> Iterator[Candidate | Miss]:
    """Every layout on every accelerator in every way of storing weights and cache: held, or why not."""
    for accelerator in question.accelerators:
        able = question.capability_for(accelerator)
        if not able.runs_on(accelerator):
            detail = f"{able.label} has no kernels for {accelerator.architecture}"
            yield Miss("engine", f"{accelerator.name} under {able.engine}", detail, 0.0, 0, accelerator.name)
            continue
        yield from _on(question, accelerator, able)


def _on(question: Question, accelerator: Accelerator, able: EngineCapability) -> Iterator[Candidate | Miss]:
    model, engine = question.model, question.engine_for(accelerator)
    options: list[WeightOption] = []
    for weights in weight_options(question, accelerator):
        refused = able.format_problem(weights.stored, accelerator)
        if refused is None:
            options.append(weights)
        else:
            yield Miss("engine", f"{accelerator.name} ({weights.name} weights)", refused, 0.0, 0, accelerator.name)
    domain = accelerator.domain
    limit = min(question.replica_limit, question.max_devices or question.replica_limit)
    for layout in question.layouts or shapes(model, accelerator, limit):
        where = f"{layout.label()} on {accelerator.name}"
        if layout.world > domain and accelerator.nic is None:
            detail = f"no network between servers is known for {accelerator.name}"
            yield Miss("no link", where, detail, layout.world, layout.world, accelerator.name, layout)
            continue
        for weights in options:
            problem = refusal(able, model, layout, weights.method)
            if problem is not None:
                yield Miss("invalid layout", where, problem, layout.world, layout.world, accelerator.name, layout)
                continue
            for kv_dtype in kv_options(question, accelerator, weights):
                refused = able.cache_problem(kv_dtype, accelerator)
                if refused is None:
                    yield hold(question, accelerator, engine, weights, kv_dtype, layout)
                else:
                    name = f"{where} ({kv_dtype} cache)"
                    yield Miss("engine", name, refused, 0.0, layout.world, accelerator.name, layout)


@functools.lru_cache(maxsize=1 << 14)
def refusal(
    able: EngineCapability, model: ModelSpec, layout: Layout, method: str | None, role: Role = "serve"
) -> str | None:
    """Why the engine refuses a layout for this model in a role; None: it runs it. Cached."""
    return able.layout_problem(model, layout, None if method is None else quantization(method), role)


def hold(
    question: Question,
    accelerator: Accelerator,
    engine: EngineMemory,
    weights: WeightOption,
    kv_dtype: str,
    layout: Layout,
) -> Candidate | Miss:
    """The layout as a candidate, if the model and the longest request fit; else why not."""
    size, name = accelerator.device_bytes, accelerator.name
    longest = question.workload.longest_context
    sized = size_replica(
        question.model, layout, size, engine, Stored(weights.method, kv_dtype, question.memory_fraction),
        held=question.held_tokens, longest=longest, limit=question.max_sequences,
    )  # fmt: skip
    memory, worst = sized.memory, sized.memory.worst
    label = f"{layout.label()} on {accelerator.name} ({weights.name} weights, {kv_dtype} cache)"
    if worst.weights > size:
        detail = f"{worst.weights / 1e9:,.1f} GB of weights a device, of {size / 1e9:,.1f} GB"
        return Miss("weights do not fit", label, detail, worst.weights / size, layout.world, name, layout)
    if worst.kv_room <= 0:
        detail = f"weights, activations and engine leave {worst.kv_room / 1e9:,.1f} GB a device"
        return Miss("no room for KV", label, detail, -worst.kv_room / size, layout.world, name, layout)
    if memory.max_batch(longest) < 1:
        holds = memory.max_context(layout.dp)
        detail = f"{holds:,.0f} tokens of KV, of {longest:,.0f} that the longest request takes"
        return Miss("context does not fit", label, detail, longest / max(holds, 1.0), layout.world, name, layout)
    largest = sized.sequences * layout.dp
    batch = largest if sized.bounded else max(largest, memory.max_batch(question.held_tokens))
    return Candidate(
        accelerator, engine, weights, kv_dtype, layout, worst.kv_room, batch, min(batch, largest), sized.sequences
    )


def told_sequences(candidate: Candidate, requests: float) -> int:
    """The limit per attention rank (`max_num_seqs`) for a replica that runs up to `requests` at once."""
    return min(candidate.sequences, max(1, math.ceil(requests / candidate.layout.dp)))
