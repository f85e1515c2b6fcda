"""What the planner page asks, answered: each takes a JSON body whose fields are texts as a person typed them."""

from pathlib import Path

import msgspec

from shoal.cli.model_spec import page_model
from shoal.plan.asked import Asked, Read, Refused, asked_from, read_asked
from shoal.plan.designs import Plan
from shoal.plan.emit import emit
from shoal.plan.explain import explain
from shoal.plan.growth import grow
from shoal.plan.growth_lines import growth_data
from shoal.plan.inverse import as_published, carried, gains, inverse_lines
from shoal.plan.question_file import parse_question
from shoal.plan.report import plan_data
from shoal.plan.restate import command, restate
from shoal.plan.search import search
from shoal.specs.errors import SpecError
from shoal.specs.load import parse_config_text
from shoal.specs.model import ModelSpec
from shoal.specs.quantities import parse_whole

MAX_SHOWN = 50


def plan_answer(body: bytes, catalogs: tuple[Path, ...]) -> dict[str, object]:
    """A search, for the fields of `Asked` and `top`, `quick` (no changed questions) and `config`, the text of a
    config.json for a model that is not in the catalogue.

    Raises `SpecError` or msgspec's `DecodeError` for what cannot be searched.
    """
    values = msgspec.json.decode(body)
    if not isinstance(values, dict):
        raise SpecError("question", values, "a JSON object")
    top = parse_whole(str(values.pop("top", 8)), "top", 1, MAX_SHOWN)
    quick = bool(values.pop("quick", False))
    config = values.pop("config", None)
    # An empty field of a form was not filled in.
    asked = asked_from({name: value for name, value in values.items() if value != ""})
    read = read_asked(asked, lambda name: _model(name, config, catalogs), catalogs)
    if read.layouts:
        raise SpecError(
            "layout", asked.layout, "nothing: the page searches; shoal plan --layout evaluates a design"
        )
    if read.inverse:
        return _inverse(read, asked, quick)
    if read.growth is not None:
        grown = growth_data(grow(read.question, read.growth, read.months))
        text = restate(read.question)
        return {"growth": grown, "question": {"text": text}, "command": command(asked), "asked": _texts(asked)}
    plan = search(read.question)
    data = plan_data(plan, explain(plan, sensitivity=not quick), top)
    return {**data, "command": command(asked), "asked": _texts(asked), "emitted": _emitted(plan, asked.model or "")}


def question_answer(body: bytes, catalogs: tuple[Path, ...]) -> dict[str, object]:
    """The fields of a question file, for the form: `text` of the file, and its `name` for what is wrong with it.

    Raises `SpecError` or msgspec's `DecodeError` for a file that is no question of one model.
    """
    values = msgspec.json.decode(body)
    text, name = (values.get(key) for key in ("text", "name")) if isinstance(values, dict) else (None, None)
    if not isinstance(text, str) or not isinstance(name, str):
        raise SpecError("question", None, "a JSON object with text and name")
    file = parse_question(text, name.rsplit("/", 1)[-1][:80] or "question.yaml")
    if file.models:
        raise SpecError(file.name, "models", "a question of one model: shoal plan --file answers fleets")
    return {"asked": _texts(file.question.asked)}


def _inverse(read: Read, asked: Asked, quick: bool) -> dict[str, object]:
    """How many users the devices carry, for devices counted and no traffic given."""
    answers = []
    for accelerator, devices in read.owned:
        found = carried(read.question, accelerator, devices)
        published = None if quick else as_published(read.question, found)
        answers.append(inverse_lines(found, published, () if quick else gains(read.question, found)))
    text = restate(read.question, traffic="as many users as these devices carry")
    return {"inverse": answers, "question": {"text": text}, "command": command(asked), "asked": _texts(asked)}


def _emitted(plan: Plan, model: str) -> list[dict[str, str]]:
    """What runs the first design: the engine's commands, and manifests for Kubernetes, labelled."""
    if plan.best is None:
        return []
    texts = []
    for target, name in ((plan.best.engine, f"{plan.best.engine} commands"), ("k8s", "Kubernetes manifests")):
        try:
            texts.append({"name": name, "text": emit(plan, target, model)})
        except SpecError as error:
            texts.append({"name": name, "text": f"# {error}"})
    return texts


def _model(name: str, config: object, catalogs: tuple[Path, ...]) -> ModelSpec:
    if isinstance(config, str) and config.strip():
        return parse_config_text(config, name)
    return page_model(name, catalogs)


def _texts(asked: Asked) -> dict[str, str]:
    values = {name: getattr(asked, name) for name in Asked.__dataclass_fields__}
    return {name: value for name, value in values.items() if value is not None}


def problems_data(error: Exception) -> list[dict[str, str]]:
    """What is wrong with each field, for the page to show beside it."""
    if isinstance(error, Refused):
        problems = error.problems
    elif isinstance(error, SpecError):
        problems = (error,)
    else:
        return []
    return [
        {
            "field": "model" if _about_the_model(problem) else problem.field,
            "value": "" if problem.value is None else str(problem.value),
            "accepted": problem.accepted,
            "message": str(problem),
        }
        for problem in problems
    ]


def _about_the_model(problem: SpecError) -> bool:
    return type(problem) is not SpecError and not isinstance(problem, Refused)
