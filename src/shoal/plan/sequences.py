"""How many sequences an engine is told to run at once, so that its memory holds as many.

An engine provides activations for the largest batch that it is allowed to run: vLLM with a limit of 1,024 sequences
sets memory aside for 1,024 rows of logits, although a plan runs 23. The fewer it is told, the more is left for KV.
"""

from dataclasses import dataclass

from shoal.plan.designs import Design
from shoal.plan.memory import ReplicaMemory, StepShape, replica_memory
from shoal.plan.question import Question
from shoal.specs.catalog.engines import EngineMemory
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec, QuantizationSpec


@dataclass(frozen=True, slots=True)
class Stored:
    """How a replica's weights and cache are stored, and the share of memory that its engine takes."""

    quantization: QuantizationSpec | str | None = None
    """None: as in the checkpoint."""
    kv_dtype: str = "bf16"
    fraction: float | None = None
    """The engine's memory fraction; None: its default."""


@dataclass(frozen=True, slots=True)
class SizedReplica:
    """A replica's memory at the limit that its engine is told."""

    memory: ReplicaMemory
    sequences: int
    """Most sequences of one attention rank (`max_num_seqs`)."""
    bounded: bool
    """Memory bounds `sequences`, not the limit that was asked for."""


def memory_at(
    model: ModelSpec, layout: Layout, device_bytes: float, engine: EngineMemory, stored: Stored, sequences: int
) -> ReplicaMemory:
    """Memory of a replica whose engine is told to run at most `sequences` on each attention rank."""
    _, tokens = engine.defaults(device_bytes)
    return replica_memory(
        model,
        layout,
        device_bytes,
        engine,
        quantization=stored.quantization,
        kv_dtype=stored.kv_dtype,
        fraction=stored.fraction,
        step=StepShape(sequences, tokens),
    )


def design_memory(question: Question, design: Design) -> ReplicaMemory:
    """Memory of one (decoding) replica of a design, with its engine told what the emitted command tells it."""
    accelerator = design.accelerator
    stored = Stored(design.weights.method, design.kv_dtype, question.memory_fraction)
    engine = question.engine_for(accelerator)
    return memory_at(question.model, design.layout, accelerator.device_bytes, engine, stored, design.sequences)


def size_replica(
    model: ModelSpec,
    layout: Layout,
    device_bytes: float,
    engine: EngineMemory,
    stored: Stored,
    *,
    held: float,
    longest: float,
    limit: int | None = None,
) -> SizedReplica:
    """The most sequences of `held` tokens that a replica runs at once, with room for one of `longest` tokens.

    Args:
        limit: most sequences to consider per attention rank; None: the engine's default.

    Returns:
        The memory at that number. Where not one request of `longest` tokens fits, at one sequence.
    """
    most = engine.defaults(device_bytes)[0] if limit is None else limit

    def at(sequences: int) -> ReplicaMemory:
        return memory_at(model, layout, device_bytes, engine, stored, sequences)

    def holds(memory: ReplicaMemory, sequences: int) -> bool:
        if any(stage.kv_room <= 0 for stage in memory.stages):
            return False
        return memory.max_batch(longest) >= layout.dp and memory.max_batch(held) >= sequences * layout.dp

    whole = at(most)
    if holds(whole, most):
        return SizedReplica(whole, most, bounded=False)
    least = at(1)
    if not holds(least, 1):
        return SizedReplica(least, 1, bounded=True)
    low, best = 1, least
    guess = _crossing(least, whole, most, held, longest)
    if guess > 1 and holds(memory := at(guess), guess):
        low, best = guess, memory
    high = most
    if not holds(memory := at(low + 1), low + 1):
        return SizedReplica(best, low, bounded=True)
    while high - low > 1:
        middle = (low + high) // 2
        memory = at(middle)
        if holds(memory, middle):
            low, best = middle, memory
        else:
            high = middle
    return SizedReplica(best, low, bounded=True)


def _crossing(least: ReplicaMemory, whole: ReplicaMemory, most: int, held: float, longest: float) -> int:
    """Where the room for KV meets what as many sequences take, if the room falls in a straight line up to `most`.
    That is exact but for reserves with a floor, where it is on the safe side."""
    found = float(most)
    for first, last in zip(least.stages, whole.stages, strict=True):
        fall = (first.kv_room - last.kv_room) / (most - 1)
        start = first.kv_room + fall
        found = min(found, start / max(fall + first.curve.bytes(held), 1e-9))
        if fall > 0:
            found = min(found, (start - first.curve.bytes(longest)) / fall)
    return max(1, int(found))
