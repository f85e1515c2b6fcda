"""The inverse question: these devices are there; how many users do they carry, how fast, and what would double it.

The answer is found with the search itself, so that a plan for that many users on those devices exists, and one for
noticeably more does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.plan.designs import Design, Plan
from shoal.plan.levers import Lever, levers, searched
from shoal.plan.question import Question
from shoal.plan.words import milliseconds, plural, seconds
from shoal.specs.hardware import Accelerator

MAX_USERS = 1 << 22
PRECISION = 0.02
"""Relative step at which the number of users is no longer narrowed down."""
ROUGH = 0.05
"""The same for what is only compared with the answer."""
DOUBLES = 1.9


@dataclass(frozen=True, slots=True)
class Carried:
    """What a number of devices of one kind carries."""

    accelerator: Accelerator
    devices: int
    users: int
    """Requests in flight within the targets; 0: not even one."""
    plan: Plan
    """For that many users; for one user where none can be served."""

    @property
    def design(self) -> Design | None:
        return self.plan.best


@dataclass(frozen=True, slots=True)
class Gain:
    """What one change makes of it."""

    change: str
    users: int
    factor: float


def carried(
    question: Question, accelerator: Accelerator, devices: int, start: int = 1, precision: float = PRECISION
) -> Carried:
    """The most users that `devices` of one kind carry.

    Args:
        question: its traffic is left out of account, lengths and targets are not.
        start: a number of users to begin looking from; any finds the same answer to within `precision`.
        precision: relative step at which to stop narrowing down.
    """
    fixed = replace(question, accelerators=(accelerator,), max_devices=devices)
    alone = _plan(fixed, 1)
    if alone is None or alone.best is None:
        return Carried(accelerator, devices, 0, alone or Plan(fixed, (), (), (), 0))
    low, plan = 1, alone
    high = max(2, start)
    while high <= MAX_USERS:
        tried = _plan(fixed, high)
        if tried is None or tried.best is None:
            break
        low, plan, high = high, tried, high * 2
    else:
        return Carried(accelerator, devices, low, plan)
    while high - low > max(1, int(low * precision)):
        middle = (low + high) // 2
        tried = _plan(fixed, middle)
        if tried is None or tried.best is None:
            high = middle
        else:
            low, plan = middle, tried
    return Carried(accelerator, devices, low, plan)


def _plan(question: Question, users: int) -> Plan | None:
    workload = replace(question.workload, users=float(users), rate=None)
    return searched(replace(question, workload=workload))


def as_published(question: Question, found: Carried) -> Carried | None:
    """The same without converting weights or cache; None where nothing is converted, or formats were named."""
    design = found.design
    if design is None or question.weights or question.kv_dtypes:
        return None
    if design.weights.native and design.kv_dtype in ("bf16", "fp32"):
        return None
    plain = replace(question, weights=("checkpoint",), kv_dtypes=("bf16",))
    return carried(plain, found.accelerator, found.devices, max(1, found.users // 2), ROUGH)


def gains(question: Question, found: Carried) -> tuple[Gain, ...]:
    """What each change makes of the number of users, strongest first; those that change nothing are left out."""
    if not found.users:
        return ()
    changes = [*levers(question)]
    results = [_gain(lever, found, found.devices) for lever in changes]
    results.append(_gain(Lever("twice the devices", question), found, found.devices * 2))
    useful = [gain for gain in results if gain.factor >= 1.05]
    return tuple(sorted(useful, key=lambda gain: -gain.factor))


def _gain(lever: Lever, found: Carried, devices: int) -> Gain:
    after = carried(lever.question, found.accelerator, devices, found.users, ROUGH)
    return Gain(lever.change, after.users, after.users / found.users)


def inverse_lines(found: Carried, published: Carried | None, changes: Sequence[Gain]) -> list[str]:
    """The answer in sentences."""
    where = f"{found.devices:,} × {found.accelerator.name}"
    design = found.design
    if design is None:
        reason = found.plan.impossible.message if found.plan.impossible else "Nothing fits."
        return [f"{where}: not even one user within the targets. {reason}"]
    used = (
        ""
        if design.devices == found.devices
        else f" ({design.devices:,} of the {found.devices:,} devices are used)"
    )
    lines = [
        f"{where} carry {plural(found.users, 'user')} at once: {design.name}{used}.",
        f"With that many: {seconds(design.ttft)} to the first token, {milliseconds(design.tpot)} per token, "
        f"{design.per_user:,.0f} tokens a second for each user, {design.tokens_per_second.mean:,.0f} in all.",
    ]
    limits = {
        "memory": "KV memory", "tpot": "the TPOT target", "ttft": "the TTFT target",
        "engine": "the engine's limit on sequences", "traffic": "the traffic alone",
    }  # fmt: skip
    lines.append(f"What ends it: {limits[design.limit]}.")
    if published is not None:
        told = "nothing within the targets" if not published.users else plural(published.users, "user")
        shape = f" ({published.design.name})" if published.design is not None else ""
        lines.append(f"Without converting weights or cache: {told}{shape}.")
    doubling = [gain for gain in changes if gain.factor >= DOUBLES]
    if changes:
        lines.append("What would double it:" if doubling else "Nothing tried alone doubles it; what helps most:")
        shown = doubling or changes[:3]
        lines += [f"  {g.change}: {plural(g.users, 'user')}, {g.factor:.1f} times as many" for g in shown]
        rest = [gain for gain in changes if gain not in shown][:4]
        lines += [f"  (less: {g.change}: {plural(g.users, 'user')}, {g.factor:.1f} times)" for g in rest]
    return lines
