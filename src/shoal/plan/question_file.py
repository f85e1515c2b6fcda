"""A question, or one of several models, as a YAML (or JSON) file: the fields of `Asked`, typed as elsewhere.

    model: llama-3.1-70b
    gpu: h100, h200
    users: 10k
    ttft: 2s

`models:` is a list of such mappings for one fleet; what stands beside the list holds for each of them that doesn't
say otherwise. Every error names the file and the line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

from shoal.plan.asked import FIELDS, Asked, Refused
from shoal.specs.errors import SpecError, unknown_name

MAX_FILE_BYTES = 256 * 1024
MAX_MODELS = 64
FLEET_ONLY = ("gpu", "prices", "max_devices")
"""Fields that hold for all models of a fleet, which share its hardware."""
_NOT_IN_FLEETS = ("layout", "growth", "months")


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of a file: a question's texts, and the line of each."""

    asked: Asked
    lines: Mapping[str, int]
    line: int


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """What a file asks."""

    name: str
    """As the person named the file."""
    question: Section
    models: tuple[Section, ...] = ()
    """One per model of a fleet, shared fields filled in; empty: the file asks about one model."""

    def located(self, problem: SpecError, section: Section | None = None) -> SpecError:
        """The error with the place of its field in the file, where the file gives that field."""
        lines = {**self.question.lines, **(section.lines if section is not None else {})}
        if problem.field in lines:
            return _at(f"{self.name}:{lines[problem.field]}", problem)
        if section is not None:
            return _at(f"{self.name}:{section.line}", problem)
        return problem


def read_question_file(path: Path) -> QuestionFile:
    """Read a file. Raises `SpecError` or `Refused` naming the file, the line and the field."""
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_FILE_BYTES + 1)
        return parse_question(content.decode("utf-8"), str(path))
    except OSError as error:
        raise SpecError("file", str(path), f"a YAML file that can be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError("file", str(path), "a YAML file in UTF-8") from None


def parse_question(text: str, name: str) -> QuestionFile:
    """Read the text of a file called `name`; see `read_question_file`."""
    if len(text.encode()) > MAX_FILE_BYTES:
        raise SpecError(name, f"{len(text):,} characters", f"at most {MAX_FILE_BYTES:,} bytes")
    root = _root(text, name)
    problems: list[SpecError] = []
    own = _section(root, name, problems, fleet=False)
    models: list[Section] = []
    listed = next((value for key, value in root.value if _key(key) == "models"), None)
    if listed is not None:
        models = _models(listed, name, own, problems)
        if own.asked.model is not None:
            place = f"{name}:{own.lines['model']}: model"
            problems.append(SpecError(place, own.asked.model, "no model beside a list of models"))
        for field in _NOT_IN_FLEETS:
            if (value := getattr(own.asked, field)) is not None:
                place = f"{name}:{own.lines[field]}: {field}"
                problems.append(SpecError(place, value, f"no {field} beside a list of models"))
    if problems:
        raise Refused(problems)
    return QuestionFile(name, own, tuple(models))


def _root(text: str, name: str) -> yaml.MappingNode:
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            # An alias may stand for another thousand times over.
            if isinstance(event, yaml.AliasEvent):
                line = 1 if event.start_mark is None else event.start_mark.line + 1
                raise SpecError(f"{name}:{line}", f"*{event.anchor}", "values without aliases")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise SpecError(name, None, "a mapping of fields to values, not nested further") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise SpecError(f"{name}:{line}", None, f"YAML ({error.problem})") from None
    except yaml.YAMLError as error:
        raise SpecError(name, None, f"YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(root, yaml.MappingNode):
        raise SpecError(f"{name}:1", None if root is None else "this", f"a mapping of fields: {', '.join(FIELDS)}")
    return root


def _models(node: yaml.Node, name: str, shared: Section, problems: list[SpecError]) -> list[Section]:
    line = node.start_mark.line + 1
    entries = node.value if isinstance(node, yaml.SequenceNode) else []
    if not 1 <= len(entries) <= MAX_MODELS or not all(isinstance(e, yaml.MappingNode) for e in entries):
        problems.append(SpecError(f"{name}:{line}: models", "this", f"a list of 1 to {MAX_MODELS} mappings"))
        return []
    found = []
    for entry in entries:
        section = _section(entry, name, problems, fleet=True)
        if section.asked.model is None:
            problems.append(SpecError(f"{name}:{section.line}: model", None, "a model for each entry"))
        found.append(replace(section, asked=with_defaults(section.asked, shared.asked)))
    return found


def _section(node: yaml.MappingNode, name: str, problems: list[SpecError], fleet: bool) -> Section:
    """One mapping. What is wrong goes to `problems`, each with its line."""
    known = [f for f in FIELDS if not (fleet and f in (*FLEET_ONLY, *_NOT_IN_FLEETS))]
    texts: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line, field = key.start_mark.line + 1, _key(key)
        if field == "models" and not fleet:
            continue
        if field not in known:
            problems.append(_unknown(f"{name}:{line}", key, field, fleet, known))
        elif field in lines:
            problems.append(
                SpecError(f"{name}:{line}: {field}", _shown(value), f"one value: line {lines[field]} too")
            )
        else:
            lines[field] = line
            text = _text(value, "; " if field == "layout" else ", ")
            if isinstance(text, SpecError):
                problems.append(SpecError(f"{name}:{line}: {field}", text.value, text.accepted))
            else:
                texts[field] = text
    return Section(Asked(**texts), lines, node.start_mark.line + 1)


def _unknown(place: str, key: yaml.Node, field: str, fleet: bool, known: list[str]) -> SpecError:
    if fleet and field in FLEET_ONLY:
        return SpecError(f"{place}: {field}", None, "it beside `models`, where it holds for all of them")
    names = known if fleet else [*known, "models"]
    return unknown_name(f"{place}: field", _shown(key), names)


def _key(node: yaml.Node) -> str:
    return str(node.value).replace("-", "_") if isinstance(node, yaml.ScalarNode) else ""


def _shown(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "a nested value"


def _text(node: yaml.Node, joint: str) -> str | SpecError | None:
    """A value's text as it stands in the file: YAML's own reading of `1:30`, `yes` or `1_000` is not asked for."""
    if isinstance(node, yaml.ScalarNode):
        null = node.tag == "tag:yaml.org,2002:null"
        return None if null else str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return joint.join(str(item.value) for item in node.value)
    return SpecError("", "a nested value", "a text, a number or a list of them")


def _at(place: str, problem: SpecError) -> SpecError:
    if type(problem) is SpecError:
        return SpecError(f"{place}: {problem.field}", problem.value, problem.accepted)
    problem.args = (f"{place}: {problem.args[0]}",)
    return problem


def with_defaults(asked: Asked, defaults: Asked) -> Asked:
    """The question, with what it leaves open taken from another."""
    open_fields = [f.name for f in fields(Asked) if getattr(asked, f.name) is None]
    return replace(asked, **{name: getattr(defaults, name) for name in open_fields})
