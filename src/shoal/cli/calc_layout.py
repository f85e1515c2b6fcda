"""`shoal calc fit` for one layout: whether an engine runs it, and what it holds at the engine's limit."""

from dataclasses import dataclass
from pathlib import Path

from shoal.cli.calc_inputs import model_of
from shoal.plan.memory import ReplicaMemory
from shoal.plan.question import CPU_ENGINE, OWN_METHODS, is_processor
from shoal.plan.sequences import SizedReplica, Stored, memory_at, size_replica
from shoal.specs.catalog import DEFAULT_ENGINE, EngineCapability, EngineMemory, load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.quantities import parse_share, parse_tokens
from shoal.specs.quantization import quantization
from shoal.specs.units import gigabytes


@dataclass(frozen=True, slots=True)
class LayoutFit:
    """One replica to look at: names and options as they were given."""

    model: str | ModelSpec
    gpu: str
    layout: Layout
    dtype: str | None
    """How weights are stored; None: as in the checkpoint."""
    kv_dtype: str
    context: str
    engine: str | None
    """None: vllm, or Shoal's own on processors."""
    version: str | None
    memory_utilization: str | None
    max_num_seqs: int | None
    catalogs: tuple[Path, ...]


def fit_layout(asked: LayoutFit) -> tuple[list[tuple[str, str]], dict[str, object]]:
    """(rows for a reader, values for a program). Raises `SpecError` for what the engine refuses."""
    catalog = load_catalog(asked.catalogs)
    model, accelerator = model_of(asked.model, list(asked.catalogs)), catalog.accelerator(asked.gpu)
    name = asked.engine or (CPU_ENGINE if is_processor(accelerator) else DEFAULT_ENGINE)
    able, engine = catalog.capability(name, asked.version), catalog.engine(name, asked.version)
    _check(asked, able, model, accelerator)
    length = parse_tokens(asked.context, "--context")
    given = asked.memory_utilization
    fraction = None if given is None else parse_share(given, "--memory-utilization", whole=True)
    stored = Stored(_held_as(asked.dtype, able), asked.kv_dtype, fraction)
    if asked.max_num_seqs is not None:
        memory = memory_at(model, asked.layout, accelerator.device_bytes, engine, stored, asked.max_num_seqs)
        sized = SizedReplica(memory, asked.max_num_seqs, bounded=False)
    else:
        sized = size_replica(
            model, asked.layout, accelerator.device_bytes, engine, stored, held=length, longest=length
        )
    alone = memory_at(model, asked.layout, accelerator.device_bytes, engine, stored, 1)
    default = memory_at(
        model, asked.layout, accelerator.device_bytes, engine, stored, engine.defaults(accelerator.device_bytes)[0]
    )
    rows = _rows(asked, able, engine, model, length, sized, alone, default, accelerator)
    return rows, _values(asked.layout, length, sized, alone)


def _held_as(dtype: str | None, able: EngineCapability) -> str | None:
    """The weights in memory: our own engine widens a checkpoint, or rounds it in its own way."""
    if able.engine != CPU_ENGINE:
        return dtype
    return "float32" if dtype is None else OWN_METHODS.get(dtype, dtype)


def _check(asked: LayoutFit, able: EngineCapability, model: ModelSpec, accelerator: Accelerator) -> None:
    """Raise `SpecError` where the engine has no such layout, part, format or cache."""
    if not able.runs_on(accelerator):
        accepted = (
            f"an engine with kernels for {accelerator.architecture}; {able.label} runs on {', '.join(able.parts)}"
        )
        raise SpecError("engine", able.engine, accepted)
    stored = None if asked.dtype is None else quantization(asked.dtype)
    method = asked.dtype or (model.quantization.method if model.quantization else model.dtype)
    problem = able.format_problem(method, accelerator)
    if problem is not None:
        raise SpecError("dtype", method, f"one of {', '.join(able.formats(accelerator))}: {problem}")
    problem = able.cache_problem(asked.kv_dtype, accelerator)
    if problem is not None:
        raise SpecError(
            "kv_dtype", asked.kv_dtype, f"one of {', '.join(able.cache_dtypes(accelerator))}: {problem}"
        )
    problem = able.layout_problem(model, asked.layout, stored)
    if problem is not None:
        near = [
            layout.label()
            for layout in asked.layout.nearest(model, able.heads == "even", stored, limit=12)
            if able.layout_problem(model, layout, stored) is None
        ]
        advice = f"a layout that {able.label} runs" + (f", nearest {' or '.join(near[:3])}" if near else "")
        raise SpecError("layout", asked.layout.label(), f"{advice} ({problem})")


def _tokens(memory: ReplicaMemory) -> float:
    """Tokens of KV that the replica holds in all, in sequences of 8,192."""
    worst = memory.worst
    return max(0.0, worst.kv_room) / worst.curve.bytes(8192) * 8192 * memory.layout.dp


def _rows(
    asked: LayoutFit, able: EngineCapability, engine: EngineMemory, model: ModelSpec, length: float,
    sized: SizedReplica, alone: ReplicaMemory, default: ReplicaMemory, accelerator: Accelerator,
) -> list[tuple[str, str]]:  # fmt: skip
    memory, worst = sized.memory, sized.memory.worst
    held = memory.max_batch(length)
    most = engine.defaults(accelerator.device_bytes)[0]
    rows = [
        ("", ""),
        (
            f"{asked.layout.label()} under {able.label} (memory constants since {engine.since})",
            memory.verdict(length),
        ),
        ("  weights, fullest device", gigabytes(worst.weights)),
        (f"  activations, told {sized.sequences:,} sequences", gigabytes(worst.activation)),
        ("  runtime, graphs, withheld", gigabytes(worst.runtime + worst.graphs + worst.withheld)),
        ("  left for KV", f"{gigabytes(worst.kv_room)}, {_tokens(memory):,.0f} tokens"),
        (f"  sequences of {asked.context} at once", f"{held:,}"),
        ("  longest that fits alone", f"{alone.max_context(1):,.0f} tokens; trained for {model.max_position:,}"),
    ]
    if sized.sequences != most:
        rows.append((f"  KV at the engine's default of {most:,}", f"{_tokens(default):,.0f} tokens"))
    return rows


def _values(layout: Layout, length: float, sized: SizedReplica, alone: ReplicaMemory) -> dict[str, object]:
    worst = sized.memory.worst
    return {
        "label": layout.label(), "verdict": sized.memory.verdict(length), "weights": worst.weights,
        "activation": worst.activation, "runtime": worst.runtime, "graphs": worst.graphs,
        "withheld": worst.withheld, "kv_room": worst.kv_room, "kv_tokens": _tokens(sized.memory),
        "max_num_seqs": sized.sequences, "max_batch": sized.memory.max_batch(length),
        "max_context": alone.max_context(1),
    }  # fmt: skip
