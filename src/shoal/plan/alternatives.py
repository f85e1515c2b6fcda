"""What else would do: other formats side by side, chunked prefill in one pool instead of a split, speculation."""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.plan.designs import Design, Plan
from shoal.plan.question import Question, is_processor, weight_options
from shoal.plan.words import milliseconds, per_million, plural
from shoal.specs.hardware import Accelerator

DRAFTS, ACCEPTANCE = 3, 0.7
"""An example of speculation: draft tokens per step, and the chance that each is accepted."""


@dataclass(frozen=True, slots=True)
class QualityCost:
    """What a format costs in quality, as measured."""

    engine: str
    weights: str
    text: str
    source: str


MEASURED = (
    QualityCost(
        "shoal", "int8", "perplexity -0.2 %, 93.8 % of greedy tokens equal, SmolLM2-135M with noised weights",
        "docs/quantization.md",
    ),
    QualityCost(
        "shoal", "int4", "perplexity +25.2 %, 63.2 % of greedy tokens equal, SmolLM2-135M with noised weights",
        "docs/quantization.md",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FormatRow:
    """The first design of a plan with weights in one format."""

    weights: str
    native: bool
    design: Design | None
    """None: no design in this format meets the question."""
    quality: str
    """Quality cost, and where it was measured; that none was; or that there is none."""

    @property
    def sentence(self) -> str:
        if self.design is None:
            return f"{self.weights}: no design meets the question. {self.quality}"
        d = self.design
        what = f"{plural(d.devices, 'device')}, TPOT {milliseconds(d.tpot)}, {per_million(d)}"
        return f"{self.weights}: {what}. {self.quality}"


def format_rows(plan: Plan) -> tuple[FormatRow, ...]:
    """Every format that was searched on the accelerator of the plan's first design; empty where nothing serves."""
    best = plan.best
    if best is None:
        return ()
    here = [d for d in plan.designs if d.beside(best)]
    able = plan.question.capability_for(best.accelerator)
    rows = []
    for option in weight_options(plan.question, best.accelerator):
        if able.format_problem(option.stored, best.accelerator) is not None:
            continue
        design = next((d for d in here if d.weights == option), None)
        quality = _quality(plan.question, best.accelerator, option.name, option.native)
        rows.append(FormatRow(option.name, option.native, design, quality))
    return tuple(rows)


def _quality(question: Question, accelerator: Accelerator, weights: str, native: bool) -> str:
    if native:
        return "As published: no further loss."
    engine = question.engine_for(accelerator).engine
    found = next((q for q in MEASURED if (q.engine, q.weights) == (engine, weights)), None)
    if found is not None:
        return f"Measured: {found.text} ({found.source})."
    return "Its quality cost is not measured here."


def alternative_lines(plan: Plan) -> Iterator[str]:
    """Sentences on formats (where there are several), chunked prefill and speculation."""
    best = plan.best
    if best is None:
        return
    rows = format_rows(plan)
    if len(rows) > 1:
        yield from (row.sentence for row in rows)
    yield chunked_sentence(plan, best)
    yield from _speculation(plan.question, best)


def chunked_sentence(plan: Plan, best: Design) -> str:
    """Whether one pool that cuts prompts into chunks meets the targets, so that no split is needed."""
    here = [d for d in plan.designs if d.beside(best) and not d.split]
    if plan.question.split == "only":
        return "Chunked prefill in one pool was ruled out by the question."
    if not here:
        return "Chunked prefill in one pool does not suffice: no such design meets the targets here."
    single = here[0]
    tokens = plan.question.engine_for(single.accelerator).defaults(single.accelerator.device_bytes)[1]
    return (
        f"Chunked prefill in one pool suffices: {single.name}, {plural(single.devices, 'device')}, "
        f"TPOT {milliseconds(single.tpot)} with steps of at most {tokens:,} tokens."
    )


def _speculation(question: Question, best: Design) -> Iterator[str]:
    able = question.capability_for(best.accelerator)
    if not able.speculation or is_processor(best.accelerator):
        return
    expected = (1 - ACCEPTANCE ** (DRAFTS + 1)) / (1 - ACCEPTANCE)
    known = ", ".join(able.speculation)
    yield (
        f"Speculative decoding is not in these figures; {able.label} has {known}. With {DRAFTS} "
        f"drafts of which each is accepted {ACCEPTANCE:.0%} of the time, a step gives {expected:.1f} tokens and "
        f"computes {DRAFTS + 1} rows per request."
    )
