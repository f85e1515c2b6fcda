"""A plan as commands or files of an engine: `emit(plan, "vllm")`.

Every text is for one version of the engine, which the table of capabilities knows. What is for accelerators has not
been run on them; a `fleet.yaml` for processors is started in a test.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shoal.plan.designs import Design, Plan
from shoal.plan.emit import kubernetes, sglang, shoal, trtllm, vllm
from shoal.plan.emit.common import Launch, launch_of
from shoal.specs.errors import SpecError, unknown_name

TARGETS: Mapping[str, Callable[[Launch], str]] = MappingProxyType(
    {
        "vllm": vllm.commands,
        "sglang": sglang.commands,
        "trtllm": trtllm.commands,
        "shoal": shoal.fleet,
        "k8s": kubernetes.manifests,
    }
)


def check_target(target: str) -> str:
    """The target, if there is such a one; else `SpecError` with the near names."""
    if target not in TARGETS:
        raise unknown_name("emit", target, TARGETS)
    return target


def emit(
    plan: Plan,
    target: str,
    model: str | None = None,
    design: Design | None = None,
    serve_model: str | None = None,
) -> str:
    """Commands or files of one design (default: the plan's first).

    Args:
        target: `vllm`, `sglang`, `trtllm`, `shoal` or `k8s`.
        model: the model as the question named it; default: its Hugging Face name where the catalogue has it.
        serve_model: what the engine should load instead: a hub name or a path on the servers.

    Raises:
        SpecError: an unknown target, a plan without a design, or a design that the target cannot run.
    """
    check_target(target)
    chosen = design or plan.best
    if chosen is None:
        raise SpecError("emit", target, "a plan with a design: nothing serves this question")
    return TARGETS[target](launch_of(plan.question, chosen, model, serve_model))
