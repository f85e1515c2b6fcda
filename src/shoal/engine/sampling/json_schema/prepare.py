"""A schema document that can be nested anywhere, with only keywords that the grammar compiler knows."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from shoal.engine.sampling.json_schema.close import close
from shoal.engine.sampling.json_schema.errors import Path, SchemaError, show_path
from shoal.engine.sampling.json_schema.locations import MANY, ONE
from shoal.engine.sampling.json_schema.references import References
from shoal.engine.sampling.json_schema.relax import NEVER_ENFORCED, NULLABLE, relaxed

Schema = dict[str, Any] | bool

_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schema whose references all read `#/$defs/NAME`."""

    schema: Schema
    definitions: dict[str, Schema] = field(default_factory=dict)
    """What they name; to be put under `$defs` at the root of whatever document holds `schema`."""

    def document(self) -> Schema:
        """Return the schema together with its definitions."""
        if not self.definitions or isinstance(self.schema, bool):
            return self.schema
        return {**self.schema, "$defs": self.definitions}


def prepare(schema: Any, *, strict: bool, taken: Collection[str] = ()) -> Prepared:
    """Resolve references, give up what cannot be enforced and close objects; see `relax` for what `strict` means.

    Definitions get names that are not in `taken`. Raises `SchemaError`, and `RecursionError` for a schema that is
    nested too deeply.
    """
    if isinstance(schema, bool):
        return Prepared(schema)
    if not isinstance(schema, dict):
        raise SchemaError((), schema, "a JSON schema is an object")
    return _Preparation(schema, strict, taken).run()


class _Preparation:
    def __init__(self, document: dict[str, Any], strict: bool, taken: Collection[str]) -> None:
        self._document = document
        self._references = References(document)
        self._strict = strict
        self._taken = set(taken)
        self._names: dict[Path, str] = {}
        self._waiting: list[Path] = []

    def run(self) -> Prepared:
        root = self._schema(self._document, ())
        definitions: dict[str, Schema] = {}
        while self._waiting:
            target = self._waiting.pop()
            definitions[self._names[target]] = self._schema(self._references.at(target), target)
        self._check_cycles(definitions)
        root, definitions = close(root, definitions)
        return Prepared(root, dict(sorted(definitions.items())))

    def _schema(self, schema: Any, path: Path) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaError(path, schema, "a JSON schema is an object")
        node = {k: v for k, v in schema.items() if v is not None or k in NULLABLE}
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            # Within one document the dynamic ones name what the plain one does.
            if keyword in node:
                target = self._references.target(node.pop(keyword), (*path, keyword))
                node = {"$ref": f"#/$defs/{self._name(target)}", **node}
        # From the inside out, so that every path is one of the client's own schema.
        for keyword in ONE:
            if isinstance(node.get(keyword), dict) and keyword not in NEVER_ENFORCED:
                node[keyword] = self._schema(node[keyword], (*path, keyword))
        for keyword in MANY:
            if isinstance(node.get(keyword), list):
                node[keyword] = [self._schema(s, (*path, keyword, i)) for i, s in enumerate(node[keyword])]
        for keyword in ("properties", "patternProperties"):
            if isinstance(node.get(keyword), dict):
                node[keyword] = {k: self._schema(s, (*path, keyword, k)) for k, s in node[keyword].items()}
        return relaxed(node, path, strict=self._strict)

    def _name(self, target: Path) -> str:
        if (name := self._names.get(target)) is None:
            stem = _NAME.sub("_", str(target[-1] if target else "root")) or "_"
            name, number = stem, 1
            while name in self._taken:
                number += 1
                name = f"{stem}-{number}"
            self._taken.add(name)
            self._names[target] = name
            self._waiting.append(target)
        return name

    def _check_cycles(self, definitions: dict[str, Schema]) -> None:
        """Refuse a definition that is nothing but a way back to itself: no value would ever be admitted."""
        paths = {name: path for path, name in self._names.items()}
        for start in definitions:
            name, seen = start, {start}
            while isinstance(node := definitions[name], dict) and "$ref" in node:
                name = node["$ref"].removeprefix("#/$defs/")
                if name in seen:
                    path = paths[start]
                    raise SchemaError((*path, "$ref"), show_path(path), "it refers to itself and to nothing else")
                seen.add(name)
