"""Sentences about the two pools of a split: the hand-off between them, and whether the split pays."""

from shoal.plan.breakdown import candidate_of
from shoal.plan.candidates import Candidate
from shoal.plan.designs import Design, Plan
from shoal.plan.kv import sequence_curve
from shoal.plan.pairing import hand_off_link, hand_off_seconds
from shoal.plan.question import Question
from shoal.plan.words import plural, usd
from shoal.specs.units import duration


def hand_off_sentence(question: Question, design: Design) -> str:
    """What moving one prompt's cache takes, whole and streamed, over the ports that set the pace."""
    decode = candidate_of(question, design)
    prefill = candidate_of(question, design, first=True)
    moved = sequence_curve(question.model, design.kv_dtype).bytes(question.workload.input.mean)
    slow = min((prefill, decode), key=_pace) if design.mixed else prefill
    link, ports = hand_off_link(slow)
    whole = hand_off_seconds(question, prefill, decode, streamed=False)
    streamed = hand_off_seconds(question, prefill, decode)
    return (
        f"Handing over a prompt's cache moves {moved / 1e9:,.2f} GB: {duration(whole)} over "
        f"{plural(ports, 'port')} of {link.name}, {duration(streamed)} when streamed layer by layer."
    )


def _pace(c: Candidate) -> float:
    link, ports = hand_off_link(c)
    return link.bandwidth * ports


def mixed_sentence(plan: Plan, best: Design) -> str:
    """What mixing accelerators takes, against the best design on one of them."""
    first = best.prefill_accelerator
    assert first is not None
    where = f"Prefill runs on {first.name} and decode on {best.accelerator.name}, over the network between them"
    single = next((d for d in plan.designs if not d.mixed), None)
    if single is None:
        return f"{where}: no design on one kind of accelerator meets the targets."
    return f"{where}: {_compared(best, single)} on {single.accelerator.name} alone ({single.name})."


def split_against(split: Design, single: Design) -> str:
    """What a split that was chosen takes, against the best design with one pool. Says that it pays only where it
    does."""
    devices = _compared(split, single, " with one pool")
    if split.cost is not None and single.cost is not None:
        fewer = split.cost.per_hour < single.cost.per_hour
    else:
        fewer = split.devices < single.devices
    if fewer:
        return f"The split pays here: {devices}, because prefill no longer interrupts decoding."
    if split.sure and not single.sure:
        return (
            f"The split takes {devices}; it comes first because it meets the targets at the intervals' upper end."
        )
    return f"The split saves nothing here: {devices} ({single.name}). Measure one pool before you run two."


def _compared(one: Design, other: Design, tail: str = "") -> str:
    text = f"{plural(one.devices, 'device')} against {other.devices:,}{tail}"
    if one.cost is None or other.cost is None:
        return text
    return f"{text}, {usd(one.cost.per_hour)} an hour against {usd(other.cost.per_hour)}"
