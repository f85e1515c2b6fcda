"""Plans to emit, and their texts taken apart."""

import shlex
from functools import lru_cache

from shoal.plan.api import ask
from shoal.plan.designs import Design, Plan
from shoal.plan.search import search


@lru_cache(maxsize=32)
def plan_of(
    name: str, gpu: str, users: float, split: str = "never", engine: str = "vllm", context: int = 4096
) -> Plan:
    return search(ask(name, gpu=[gpu], users=users, context=context, split=split, engine=engine))  # type: ignore[arg-type]


def words(text: str) -> list[list[str]]:
    """The commands of a shell text, each split as a shell does."""
    lines = text.replace(" \\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


def option(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def design_of(plan: Plan, **degrees: int) -> Design:
    wanted = {"tp": 1, "pp": 1, "dp": 1, **degrees}
    return next(
        d for d in plan.designs
        if all(getattr(d.layout, axis) == degree for axis, degree in wanted.items()) and d.weights.native
    )  # fmt: skip
