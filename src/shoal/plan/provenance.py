"""Where the figures of an explanation come from: each with its class, its interval and its source."""

from dataclasses import dataclass

from shoal.plan.artifact import shipped
from shoal.plan.cautions import footprint
from shoal.plan.deployment import Deployment, Pool
from shoal.plan.designs import Design
from shoal.plan.intervals import LEVELS, familiarity
from shoal.plan.question import Question
from shoal.plan.words import milliseconds, per_million, seconds, usd
from shoal.plan.work import model_work
from shoal.specs.hardware import Figure, FigureClass


@dataclass(frozen=True, slots=True)
class Sourced:
    """One figure of the explanation."""

    name: str
    text: str
    """With unit and interval."""
    kind: FigureClass
    source: str


def sourced(question: Question, design: Design) -> tuple[Sourced, ...]:
    """Every figure that the answer rests on, inputs first."""
    found = [
        _catalogued(f"{part.name} {name}" if design.mixed else name, figure)
        for part in design.accelerators
        for name, figure in part.figures
        if _used(name, question)
    ]
    held = footprint(question, design)
    found.append(Sourced("weights", f"{held.weights / 1e9:,.1f} GB", "calculated", "tensor shapes × stored width"))
    found.append(
        Sourced(
            "KV cache at the peak", f"{held.cache / 1e9:,.1f} GB", "calculated", "layers × heads × width × tokens"
        )
    )
    tpot, ttft = _fit_sources(question, design)
    found.append(Sourced("TPOT", milliseconds(design.tpot), "calculated", tpot))
    found.append(Sourced("TTFT", seconds(design.ttft), "calculated", ttft))
    if design.cost is not None:
        source = f"{design.devices} devices × {question.basis} price ÷ {design.demand:,.0f} output tokens a second"
        found.append(Sourced("cost", per_million(design), "calculated", source))
        found.append(Sourced("cost an hour", usd(design.cost.per_hour), "calculated", "devices × price"))
    if design.energy is not None:
        text = f"{design.energy.kilowatts:,.2f} kW, {design.energy.watt_hours_per_million:,.0f} Wh a million tokens"
        found.append(
            Sourced("power, at most", text, "calculated", "rated power × devices; hosts and cooling left out")
        )
    return tuple(found)


_LEFT_OUT = dict(zip(LEVELS, ("rows", "machines", "models", "engines", "generations of hardware"), strict=True))


def _fit_sources(question: Question, design: Design) -> tuple[str, str]:
    """(TPOT, TTFT): the fit, and its error where it stood as far from its rows as this design does."""
    found = question.constants or shipped()
    template = Deployment(
        model_work(question.model), design.accelerator, design.weights.precision, design.engine,
        Pool(design.layout), question.workload.input.mean, question.workload.output.mean, 1.0,
    )  # fmt: skip
    place = int(familiarity(template, found.seen, found.engines, found.own).level)
    if place >= len(LEVELS):
        own = f"calibrated to {found.own[place - len(LEVELS)].observations} runs of this model on this machine"
        return own, own
    level = LEVELS[place]
    left_out = _LEFT_OUT[level]
    quality = found.quality.get(left_out.split()[0], {}).get("workers known")
    if quality is None:
        return "roofline model", "roofline model"
    fit = f"roofline model fitted to {found.quality['nothing']['all'].rows:,} measured rows; median error"
    return (
        f"{fit} {quality.tpot_median:.0%} on {left_out} left out",
        f"{fit} {quality.ttft_median:.0%} on {left_out} left out",
    )


def _used(name: str, question: Question) -> bool:
    return name not in (f"price_{'rented' if question.basis == 'owned' else 'owned'}", "devices_per_node")


def _catalogued(name: str, figure: Figure) -> Sourced:
    return Sourced(name, figure.text, figure.kind, f"{figure.source}, {figure.date}")
