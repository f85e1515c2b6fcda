"""What every engine has to be told, whatever its flags are called."""

import math
import shlex
from dataclasses import dataclass

from shoal.plan.designs import Design
from shoal.plan.emit.reference import Checkpoint, checkpoint_of
from shoal.plan.question import Question
from shoal.plan.words import milliseconds, seconds
from shoal.specs.catalog import EngineCapability
from shoal.specs.catalog.hand_over import ANY_BACKEND, shared_backend
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout

FIRST_PORT = 8000


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one layout that are started alike."""

    role: str
    """`serve`, `prefill` or `decode`."""
    layout: Layout
    replicas: int
    sequences: int
    """Requests that the engine is told to run at once on one attention rank."""
    accelerator: Accelerator

    @property
    def per_node(self) -> int:
        return self.accelerator.devices_per_node

    @property
    def nodes(self) -> int:
        """Servers of one replica."""
        return max(1, math.ceil(self.layout.world / self.per_node))


@dataclass(frozen=True, slots=True)
class Launch:
    """One design, as launchers need it."""

    question: Question
    design: Design
    checkpoint: Checkpoint
    pools: tuple[Pool, ...]
    context: int
    """The longest request, tokens."""

    @property
    def able(self) -> EngineCapability:
        """The engine version that the text is for, and what it can do."""
        return self.question.capability_for(self.design.accelerator)

    def tokens(self, pool: Pool) -> int:
        """Tokens of a step that a pool's memory was planned for (`max_num_batched_tokens`)."""
        accelerator = pool.accelerator
        return self.question.engine_for(accelerator).defaults(accelerator.device_bytes)[1]

    @property
    def attention_backend(self) -> str | None:
        """The attention backend that pools on different architectures have to be told alike; None: none."""
        design = self.design
        if design.prefill_accelerator is None:
            return None
        parts = (design.prefill_accelerator, design.accelerator)
        found = shared_backend(self.able, self.question.model, *parts, design.kv_dtype)
        return None if found in (None, "", ANY_BACKEND) else found

    @property
    def fraction(self) -> float:
        """The engine's memory fraction."""
        given = self.question.memory_fraction
        return self.question.engine_for(self.design.accelerator).fraction if given is None else given

    @property
    def slug(self) -> str:
        """The model's name as Kubernetes and shells like it."""
        kept = [c if c.isalnum() else "-" for c in self.checkpoint.name.rsplit("/", 1)[-1].lower()]
        return "".join(kept).strip("-")[:40].strip("-") or "model"

    @property
    def rounds(self) -> bool:
        """The engine itself converts the published weights, on loading."""
        weights = self.design.weights
        return not weights.native and weights.name in self.able.rounds

    @property
    def converted(self) -> str | None:
        """The format that a checkpoint has to be stored in; None: the published one does."""
        weights = self.design.weights
        plain = weights.native or weights.name in ("bf16", "fp16", "fp32", "float16", "float32")
        return None if plain or self.rounds else weights.name

    def header(self, label: str) -> list[str]:
        """Comment lines that open every emitted text."""
        d = self.design
        return [
            f"# {d.name}",
            f"# {d.devices} devices. Written for {label}; flags change: check its documentation.",
            f"# Predicted, not measured: TTFT {seconds(d.ttft)}, TPOT {milliseconds(d.tpot)}.",
        ]


def launch_of(question: Question, design: Design, model: str | None, serve_model: str | None = None) -> Launch:
    """Everything a launcher needs from a design."""
    here = design.accelerator
    if design.prefill is None:
        pools: tuple[Pool, ...] = (Pool("serve", design.layout, design.replicas, design.sequences, here),)
    else:
        pools = (
            Pool(
                "prefill", design.prefill, design.prefill_replicas, design.prefill_sequences,
                design.prefill_accelerator or here,
            ),
            Pool("decode", design.layout, design.replicas, design.sequences, here),
        )  # fmt: skip
    context = math.ceil(question.workload.longest_context)
    return Launch(question, design, checkpoint_of(question, model, serve_model), pools, context)


def shell_model(launch: Launch) -> tuple[list[str], str]:
    """(lines that say which checkpoint, the model as a shell command names it)."""
    wanted, checkpoint = launch.converted, launch.checkpoint
    if wanted is not None and checkpoint.given is None:
        note = f"# The plan stores weights as {wanted}: set MODEL to {checkpoint.name} converted to it."
        return [note, f'MODEL="${{MODEL:?a {wanted} checkpoint of {shell_safe(checkpoint.name)}}}"'], '"$MODEL"'
    if checkpoint.reference is None:
        note = f"# {checkpoint.name} is known by its config alone: set MODEL to the weights' directory or hub name."
        return [note, f'MODEL="${{MODEL:?directory or hub name of {shell_safe(checkpoint.name)}}}"'], '"$MODEL"'
    return [], shlex.quote(checkpoint.reference)


def file_model(launch: Launch, target: str) -> str:
    """The model as a file names it, where no variable can stand in its place. Raises `SpecError` for one that is
    known by its config alone, or that has to be converted first."""
    checkpoint, wanted = launch.checkpoint, launch.converted
    if checkpoint.given is not None:
        return checkpoint.given
    if wanted is not None:
        accepted = (
            f"--serve-model with a {wanted} checkpoint, or --weights checkpoint for a design that converts none"
        )
        raise SpecError("emit", target, accepted)
    if checkpoint.reference is None:
        accepted = f"--serve-model with a directory or hub name: of {checkpoint.name} only a config is known"
        raise SpecError("emit", target, accepted)
    return checkpoint.reference


def shell_safe(text: str) -> str:
    """For inside double quotes of a `${…:?…}`: what a shell would read as its own is left out."""
    return "".join(c for c in text if c.isalnum() or c in "/._- ")


def need_engine(launch: Launch, engine: str) -> None:
    """Refuse designs that were planned for another engine than the text is for."""
    planned = launch.able
    if planned.engine != engine:
        here = launch.design.accelerator.name
        raise SpecError("emit", engine, f"{planned.engine} or shoal: the plan runs {planned.engine} on {here}")


def pool_heading(launch: Launch, pool: Pool, role: str) -> str:
    """The comment above a pool's commands: how many replicas, and on which accelerator where there are two."""
    where = f"{pool.accelerator.name} devices" if launch.design.mixed else "devices"
    return f"# {pool.replicas} of these{role}, each on {where} of its own:"


def command(parts: list[str]) -> str:
    """Options on lines of their own, joined as a shell reads them."""
    return " \\\n  ".join(parts)
