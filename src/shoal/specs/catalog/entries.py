"""Reading catalogue files: every value with its provenance, every error with its file, entry and field."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from shoal.specs.errors import SpecError, near_names
from shoal.specs.hardware import FIGURE_CLASSES, Figure, FigureClass
from shoal.specs.quantities import Dimension, parse_quantity

_ROOT_FIELDS = ("sources", "accelerators", "prices", "engines", "capabilities", "clusters", "models")
_PLAIN_FIGURE = "{value: …, source: …, date: …, class: …} or {value: …, from: a name under `sources`}"


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance shared by several figures of a file."""

    source: str
    date: str
    kind: FigureClass


@dataclass(frozen=True, slots=True)
class Entry:
    """One mapping of a catalogue file, read field by field; `where` names it in errors: file and entry."""

    where: str
    values: Mapping[str, object]
    sources: Mapping[str, Source]

    def field(self, name: str) -> str:
        return f"{self.where}: {name}"

    def only(self, *known: str) -> None:
        """Refuse fields that nobody reads: a misspelled one would silently do nothing."""
        for name in self.values:
            if name not in known:
                near = near_names(name, known)
                hint = f"{near[0]} (nearest known field)" if near else f"one of {', '.join(known)}"
                raise SpecError(self.field(name), self.values[name], f"no such field; {hint}")

    def section(self, name: str) -> "Entry | None":
        """A mapping inside this one; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise SpecError(self.field(name), value, "a mapping")
        return Entry(self.field(name).replace(": ", "."), _text_keys(value, self.field(name)), self.sources)

    def required_section(self, name: str) -> "Entry":
        section = self.section(name)
        if section is None:
            raise SpecError(self.field(name), None, "a mapping; this field is required")
        return section

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or not value.strip():
            raise SpecError(self.field(name), value, "text; this field is required")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise SpecError(self.field(name), value, "a list of texts (quote names that are numbers)")
        return tuple(value)

    def figure(self, name: str, dimension: Dimension | None) -> Figure | None:
        """A figure with its provenance: a quantity of `dimension`, or a plain number; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            accepted = f"{_PLAIN_FIGURE}: a figure says where it comes from"
            raise SpecError(self.field(name), value, accepted)
        inner = Entry(self.field(name), _text_keys(value, self.field(name)), self.sources)
        inner.only("value", "from", "source", "date", "class", "note")
        raw = value.get("value")
        if dimension is None:
            number = _number(raw, self.field(name))
        else:
            number = parse_quantity(raw, dimension, self.field(name))
        source = inner.provenance()
        note = value.get("note")
        text = source.source if note is None else f"{source.source} ({note})"
        return Figure(number, str(raw), text, source.date, source.kind)

    def required_figure(self, name: str, dimension: Dimension | None) -> Figure:
        figure = self.figure(name, dimension)
        if figure is None:
            raise SpecError(self.field(name), None, f"{_PLAIN_FIGURE}; this field is required")
        return figure

    def provenance(self) -> Source:
        """Where the entry as a whole comes from: `from`, or its own `source`, `date` and `class`."""
        if "from" in self.values:
            name = self.values["from"]
            if not isinstance(name, str) or name not in self.sources:
                known = ", ".join(self.sources) or "none is defined"
                raise SpecError(self.field("from"), name, f"a name under `sources` of this file: {known}")
            return self.sources[name]
        return _source(self)


def _source(entry: Entry) -> Source:
    kind = entry.values.get("class")
    if kind not in FIGURE_CLASSES:
        raise SpecError(entry.field("class"), kind, f"one of {', '.join(FIGURE_CLASSES)}")
    date = entry.values.get("date")
    if date is None:
        raise SpecError(entry.field("date"), None, "when the source was read: YYYY, YYYY-MM or YYYY-MM-DD")
    return Source(entry.text("source"), str(date), next(k for k in FIGURE_CLASSES if k == kind))


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SpecError(field, value, "a number greater than zero, without a unit")
    return float(value)


def _text_keys(value: Mapping[object, object], where: str) -> Mapping[str, object]:
    for key in value:
        if not isinstance(key, str):
            raise SpecError(where, key, "names that are texts (quote names that are numbers)")
    return {str(key): item for key, item in value.items()}


def read_file(path: Path, name: str) -> Entry:
    """A catalogue file's top level, with its `sources` read. Raises `SpecError` naming the file."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except OSError as error:
        raise SpecError(name, str(path), f"a readable file ({error.strerror or error})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(name, str(path), f"a YAML file ({error})") from error
    if not isinstance(content, dict):
        raise SpecError(name, type(content).__name__, f"a mapping with some of {', '.join(_ROOT_FIELDS)}")
    bare = Entry(name, _text_keys(content, name), MappingProxyType({}))
    bare.only(*_ROOT_FIELDS)
    section = bare.section("sources")
    sources: dict[str, Source] = {}
    for key in section.values if section is not None else ():
        inner = section.required_section(key) if section is not None else bare
        inner.only("source", "date", "class")
        sources[key] = _source(inner)
    return Entry(name, bare.values, MappingProxyType(sources))


# libyaml's loader where PyYAML was built with it: a tenth of the time at every start of the command line.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
