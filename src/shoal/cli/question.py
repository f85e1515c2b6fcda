"""The planner's question of a command line: options to texts, texts to a question, errors in the options' names."""

from collections.abc import Sequence
from pathlib import Path

from shoal.cli.model_spec import model_spec
from shoal.plan.asked import FIELDS, Asked, Read, Refused, read_asked
from shoal.specs.errors import SpecError


def asked_of_options(model: str | None, model_option: str | None, **options: str | Sequence[str] | None) -> Asked:
    """The question of these options; repeated ones are joined by commas.

    Raises `SpecError` where the model is given twice.
    """
    if model is not None and model_option is not None and model != model_option:
        raise SpecError("--model", model_option, f"the model once: MODEL is {model!r} already")
    texts = {
        name: value if value is None or isinstance(value, str) else ", ".join(value) or None
        for name, value in options.items()
        if value != []
    }
    # `--gpu ""` is given and empty, which is an error; an option that was not given is an empty list.
    given = options.get("gpu")
    texts["gpu"] = None if not given else given if isinstance(given, str) else ", ".join(given)
    return Asked(model=model if model is not None else model_option, **texts)


def read_question(asked: Asked, catalogs: Sequence[Path], engine: str = "vllm") -> Read:
    """Read a question. Raises `Refused` in terms of the command line: `--ttft`, not `ttft`."""
    try:
        return read_asked(asked, lambda name: model_spec(name, catalogs), catalogs, engine)
    except Refused as refused:
        raise Refused([in_options_terms(problem) for problem in refused.problems]) from None


def in_options_terms(problem: SpecError) -> SpecError:
    """The error with its field as the option is typed."""
    if problem.field not in FIELDS or type(problem) is not SpecError:
        return problem
    option = "MODEL" if problem.field == "model" else f"--{problem.field.replace('_', '-')}"
    return SpecError(option, problem.value, problem.accepted)
