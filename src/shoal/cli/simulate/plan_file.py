"""A fleet out of what `shoal plan --json` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from shoal.cli.simulate.machines import Made, fact, planned, replicas_of, router_of
from shoal.cli.simulate.options import Replicas
from shoal.specs.errors import SpecError
from shoal.specs.layout import AXES

_FORMAT = 1


class _Design(msgspec.Struct, frozen=True):
    name: str
    accelerator: str
    engine: str
    weights: str
    kv_dtype: str
    layout: dict[str, int | str]
    replicas: int
    prefill_layout: dict[str, int | str] | None = None


class _Question(msgspec.Struct, frozen=True):
    model: str
    input_tokens: float
    output_tokens: float
    users: float | None = None
    requests_per_second: float | None = None


class _Plan(msgspec.Struct, frozen=True):
    format: int
    question: _Question
    designs: tuple[_Design, ...]


def planned_fleet(path: Path, options: Replicas) -> Made:
    """The fleet of one of a plan's designs; options go before what it says."""
    from shoal.sim import SimulatedFleet

    plan = _read(path)
    if options.design > len(plan.designs):
        raise SpecError("design", options.design, f"one of the {len(plan.designs)} designs of {path}")
    design = plan.designs[options.design - 1]
    if design.prefill_layout is not None:
        accepted = "a design without a split (shoal plan --split never, or --design); a fleet.yaml may have one"
        raise SpecError(f"{path}: designs[{options.design - 1}]", design.name, accepted)
    axes = ",".join(f"{axis}={design.layout[axis]}" for axis in AXES if design.layout.get(axis, 1) != 1)
    given = replace(
        options,
        model=options.model or plan.question.model,
        gpu=options.gpu or design.accelerator,
        replicas=design.replicas if options.replicas is None else options.replicas,
        layout=options.layout or axes or "tp=1",
        engine=options.engine or design.engine,
        weights=options.weights or _weights(design.weights),
        kv_dtype=options.kv_dtype or design.kv_dtype,
    )
    assert given.replicas is not None
    made = planned(given)
    fleet = SimulatedFleet(
        replicas=replicas_of(made, given.replicas, given, prefix="r"), router=router_of(options.router)
    )
    facts = (("plan", f"{path}, design {options.design}: {design.name}"), fact(given.replicas, made, given))
    asked = plan.question
    return Made(
        fleet, facts, asked.users, f"{asked.input_tokens:.0f}", f"{asked.output_tokens:.0f}", made.deviations
    )


def _weights(name: str) -> str:
    """As the planner's options name them: `bfloat16` stands for the checkpoint's own."""
    return "checkpoint" if name in ("bfloat16", "float16") else name


def _read(path: Path) -> _Plan:
    accepted = "what `shoal plan MODEL --json` prints"
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=_Plan)
    except OSError as error:
        raise SpecError("fleet", str(path), f"a file that can be read ({error.strerror})") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SpecError("fleet", str(path), f"{accepted} ({error})") from None
    if plan.format != _FORMAT or not plan.designs:
        what = "a plan with designs" if plan.format == _FORMAT else f"format {_FORMAT}"
        raise SpecError("fleet", str(path), f"{accepted}: {what}")
    return plan
