"""One line for every accelerator that a question names or implies, so that none vanishes from the answer."""

from shoal.plan.designs import Design, Plan
from shoal.plan.words import milliseconds, plural, usd
from shoal.specs.hardware import Accelerator


def part_lines(plan: Plan) -> tuple[str, ...]:
    """The best design of each accelerator, and pair of them, but the plan's first, in ranked order; then those on
    which nothing serves.

    Those without a price on the question's basis are called unpriced and ranked by devices, after all others.
    """
    question = plan.question
    if len(question.accelerators) < 2:
        return ()
    first: dict[str, tuple[int, Design]] = {}
    for place, design in enumerate(plan.designs, start=1):
        first.setdefault(design.hardware, (place, design))
    used = {part.name for design in plan.designs for part in design.accelerators}
    best = plan.best.hardware if plan.best is not None else ""
    lines = [_serves(place, design) for name, (place, design) in first.items() if name != best]
    lines += [_misses(plan, a) for a in question.accelerators if a.name not in used]
    return tuple(lines)


def _serves(place: int, design: Design) -> str:
    what = f"{design.hardware}: {plural(design.devices, 'device')}, TPOT {milliseconds(design.tpot)}"
    if design.cost is None:
        return f"{what}, unpriced: ranked by devices, after all that have a price."
    return f"{what}, {usd(design.cost.per_hour)} an hour, place {place:,}."


def _misses(plan: Plan, accelerator: Accelerator) -> str:
    mine = [m for m in plan.missed if m.accelerator == accelerator.name or accelerator.name in m.label.split()]
    if not mine:
        return f"{accelerator.name}: no layout to consider."
    nearest = min(mine, key=lambda m: (m.reason in ("invalid layout", "no link"), m.devices, m.short))
    return f"{accelerator.name}: nothing serves; nearest, {nearest.label}: {nearest.detail}."


def sure_line(plan: Plan) -> str | None:
    """The cheapest design whose upper ends meet the targets too, where the plan's first may miss one."""
    best = plan.best
    if best is None or best.sure:
        return None
    sure = next((d for d in plan.designs if d.sure), None)
    if sure is None:
        return (
            "No design meets every target at the upper end of its interval; --sure sizes for that end, and the "
            "fit of your own measurements narrows it."
        )
    price = f", {usd(sure.cost.per_hour)} an hour" if sure.cost is not None else ""
    return (
        f"The first design may miss a target (its interval reaches beyond). The first that surely meets them: "
        f"{sure.name} ({plural(sure.devices, 'device')}{price})."
    )
