"""Where schemas lie within a schema object (JSON Schema 2020-12, and the older drafts' keywords)."""

from collections.abc import Iterator
from typing import Any

from shoal.engine.sampling.json_schema.errors import Path

ONE = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose value is a schema."""
MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas; draft 7 has `items` so."""
NAMED = ("$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties")
"""Keywords whose value is an object of schemas."""


def subschemas(node: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield every schema directly within `node`, with the steps that lead there."""
    for keyword in ONE:
        if isinstance(node.get(keyword), dict | bool):
            yield (keyword,), node[keyword]
    for keyword in MANY:
        if isinstance(node.get(keyword), list):
            yield from (((keyword, i), item) for i, item in enumerate(node[keyword]))
    for keyword in NAMED:
        if isinstance(node.get(keyword), dict):
            yield from (
                ((keyword, name), item) for name, item in node[keyword].items() if isinstance(item, dict | bool)
            )
