"""The planner's question of a command line: options to texts, texts to a question, errors in the options' names."""

from collections.abc import Sequence
from pathlib import Path

from shoal.cli.model_spec import model_spec
from shoal.plan.asked import FIELDS, Asked, Read, Refused, read_asked
from shoal.plan.question_file import QuestionFile, Section
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


def read_question(
    asked: Asked, catalogs: Sequence[Path], engine: str = "vllm", file: QuestionFile | None = None,
    section: Section | None = None,
) -> Read:  # fmt: skip
    """Read a question.

    Args:
        file: where fields may have come from; `section`: the part of it that is this question's.

    Raises `Refused` in terms of where each field was given: `question.yaml:3: ttft`, or `--ttft`.
    """
    try:
        shared = section is not None
        return read_asked(asked, lambda name: model_spec(name, catalogs), catalogs, engine, shared)
    except Refused as refused:
        raise Refused([_where_typed(problem, asked, file, section) for problem in refused.problems]) from None


def _where_typed(problem: SpecError, asked: Asked, file: QuestionFile | None, section: Section | None) -> SpecError:
    source = section or (None if file is None else file.question)
    if file is None or source is None or problem.field not in FIELDS:
        return in_options_terms(problem)
    # An option that was typed beside the file's value took its place.
    from_file = getattr(source.asked, problem.field) == getattr(asked, problem.field)
    located = file.located(problem, section) if from_file else problem
    return in_options_terms(problem) if located is problem else located


def in_options_terms(problem: SpecError) -> SpecError:
    """The error with its field as the option is typed."""
    if problem.field not in FIELDS or type(problem) is not SpecError:
        return problem
    option = "MODEL" if problem.field == "model" else f"--{problem.field.replace('_', '-')}"
    return SpecError(option, problem.value, problem.accepted)
