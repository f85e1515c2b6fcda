"""What every engine has to be told, whatever its flags are called."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from shoal.plan.designs import Design
from shoal.plan.question import Question
from shoal.plan.words import milliseconds, seconds
from shoal.specs.catalog.models import catalog_entry
from shoal.specs.errors import SpecError, UnknownModel
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
    """Requests that one replica runs at once."""

    def nodes(self, per_node: int) -> int:
        """Servers of one replica."""
        return max(1, math.ceil(self.layout.world / per_node))


@dataclass(frozen=True, slots=True)
class Launch:
    """One design, as launchers need it."""

    question: Question
    design: Design
    model: str
    """Hub name or path of the published checkpoint."""
    pools: tuple[Pool, ...]
    context: int
    """The longest request, tokens."""

    @property
    def per_node(self) -> int:
        return self.design.accelerator.devices_per_node

    @property
    def slug(self) -> str:
        """The model's name as Kubernetes and shells like it."""
        kept = [c if c.isalnum() else "-" for c in self.model.rsplit("/", 1)[-1].lower()]
        return "".join(kept).strip("-")[:40].strip("-") or "model"

    def header(self, engine: str, written_for: str) -> list[str]:
        """Comment lines that open every emitted text."""
        d = self.design
        lines = [
            f"# {d.name}",
            f"# {d.devices} devices. Written for {engine} {written_for}; flags change: check its documentation.",
            f"# Predicted, not measured: TTFT {seconds(d.ttft)}, TPOT {milliseconds(d.tpot)}.",
        ]
        return lines


def launch_of(question: Question, design: Design, model: str | None) -> Launch:
    """Everything a launcher needs from a design."""
    room = max(design.capacity, math.ceil(design.load))
    if design.prefill is None:
        pools: tuple[Pool, ...] = (Pool("serve", design.layout, design.replicas, room),)
    else:
        waiting = math.ceil(design.load * design.replicas / design.prefill_replicas)
        pools = (
            Pool("prefill", design.prefill, design.prefill_replicas, min(waiting, 256)),
            Pool("decode", design.layout, design.replicas, room),
        )
    context = math.ceil(question.workload.longest_context)
    return Launch(question, design, _reference(question, model), pools, context)


def _reference(question: Question, model: str | None) -> str:
    """A path as given; a catalogued model by its first Hugging Face name."""
    if model is not None and Path(model).exists():
        path = Path(model)
        return str(path.parent if path.name == "config.json" else path)
    for name in (model, question.model.name):
        try:
            entry = catalog_entry(name) if name else None
        except UnknownModel:
            continue
        if entry is not None:
            asked = next((known for known in entry.ids if name and known.lower() == name.lower()), None)
            return asked or entry.ids[0]
    return model or question.model.name


def converted(launch: Launch) -> str | None:
    """The name of the weights' format where engines need a checkpoint stored so, not the published one."""
    weights = launch.design.weights
    return None if weights.native or weights.name in ("fp8", "bf16", "float32") else weights.name


def checkpoint(launch: Launch) -> tuple[list[str], str]:
    """(lines that say which checkpoint, the model as the command names it)."""
    wanted = converted(launch)
    if wanted is None:
        return [], shlex.quote(launch.model)
    note = f"# The plan stores weights as {wanted}: set MODEL to a checkpoint of {launch.model} converted to it."
    return [note, f'MODEL="${{MODEL:?a {wanted} checkpoint of {launch.model}}}"'], '"$MODEL"'


def need_gpu(launch: Launch, engine: str) -> None:
    """Refuse designs on processors for engines that the planner knows on accelerators only."""
    if not launch.design.accelerator.supports("bf16"):
        raise SpecError("emit", engine, f"shoal or k8s: {launch.design.accelerator.name} is a processor")


def command(parts: list[str]) -> str:
    """Options on lines of their own, joined as a shell reads them."""
    return " \\\n  ".join(parts)
