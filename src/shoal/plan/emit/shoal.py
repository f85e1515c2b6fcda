"""Shoal's own engine: `shoal serve`."""

import shlex

from shoal import __version__
from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, command

_OWN = {"HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m", "google/gemma-3-270m": "gemma3-270m"}


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica."""
    layout = pool.layout
    axes = (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp), ("cp", layout.cp), ("ep", layout.ep))
    found = [f"--{axis} {degree}" for axis, degree in axes if degree > 1]
    device = "cpu" if not launch.design.accelerator.supports("bf16") else "cuda"
    found.append(f"--device {device}")
    if launch.design.weights.name == "float32":
        found.append("--dtype float32")
    return [*found, f"--max-model-len {launch.context}", f"--max-num-seqs {pool.sequences}"]


def commands(launch: Launch) -> str:
    """A shell text: one command a replica."""
    model = shlex.quote(_OWN.get(launch.model, launch.model))
    lines = launch.header("Shoal", __version__)
    if not launch.design.weights.native:
        lines.append(f"# The plan stores weights as {launch.design.weights.name}: give a checkpoint stored so.")
    port = FIRST_PORT
    for pool in launch.pools:
        role = "" if pool.role == "serve" else f" ({pool.role})"
        for number in range(pool.replicas):
            lines += ["", f"# replica {number + 1} of {pool.replicas}{role}"]
            lines.append(command([f"shoal serve {model}", *options(launch, pool), f"--port {port}"]))
            port += 1
    return "\n".join(lines) + "\n"
