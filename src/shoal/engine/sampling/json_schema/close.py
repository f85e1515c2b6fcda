"""Objects that say nothing of further properties get none.

A schema that lists `properties` and leaves `additionalProperties` out admits any others, and a small model goes on
inventing them until its tokens are spent. The grammars of llama.cpp, Outlines and XGrammar allow only those listed,
and so does this. `additionalProperties: true` opens an object. Objects that are combined with others (`allOf`,
siblings of `$ref`) stay as they are: closed ones would exclude each other's properties.
"""

from typing import Any

Schema = dict[str, Any] | bool

_SPOKEN = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_PREFIX = "#/$defs/"


def close(schema: Schema, definitions: dict[str, Schema]) -> tuple[Schema, dict[str, Schema]]:
    """Return a prepared schema and its definitions with `additionalProperties: false` where nothing is said."""
    open_names = _combined_names(schema, definitions)
    return _closed(schema), {
        name: node if name in open_names else _closed(node) for name, node in definitions.items()
    }


def _combined_names(schema: Schema, definitions: dict[str, Schema]) -> set[str]:
    """Definitions that are somewhere combined with another schema, or are part of one that is."""
    found: set[str] = set()
    waiting: list[tuple[Any, bool]] = [(schema, False), *((node, False) for node in definitions.values())]
    while waiting:
        node, combined = waiting.pop()
        if not isinstance(node, dict):
            continue
        name = str(node.get("$ref", "")).removeprefix(_PREFIX)
        if name in definitions and name not in found and (combined or _combines(node, "$ref")):
            found.add(name)
            waiting.append((definitions[name], True))
        for inner, inner_combined in _inner(node):
            waiting.append((inner, combined or inner_combined))
    return found


def _inner(node: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The schemas within `node`, each with whether `node` combines it with another."""
    inner: list[tuple[Any, bool]] = []
    for keyword in ("allOf", "anyOf", "oneOf"):
        combined = _combines(node, keyword)
        inner += [(item, combined) for item in node.get(keyword, ())]
    for keyword in ("properties", "patternProperties"):
        inner += [(item, False) for item in node.get(keyword, {}).values()]
    inner += [(item, False) for item in node.get("prefixItems", ())]
    items = node.get("items")
    inner += [(item, False) for item in (items if isinstance(items, list) else [items])]
    inner.append((node.get("additionalProperties"), False))
    return inner


def _combines(node: dict[str, Any], keyword: str) -> bool:
    """Whether what stands under `keyword` has to hold together with something else about objects."""
    if keyword == "allOf" and len(node.get("allOf", ())) > 1:
        return True
    return any(other in node for other in ("properties", *_COMBINING) if other != keyword)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = dict(schema)
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in node and not _combines(node, keyword):
            node[keyword] = [_closed(item) for item in node[keyword]]
    if any(keyword in node for keyword in _COMBINING):
        return node
    for keyword in ("properties", "patternProperties"):
        if keyword in node:
            node[keyword] = {name: _closed(item) for name, item in node[keyword].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            node[keyword] = _closed(node[keyword])
    for keyword in ("items", "prefixItems"):
        if isinstance(node.get(keyword), list):
            node[keyword] = [_closed(item) for item in node[keyword]]
    if "properties" in node and not any(keyword in node for keyword in _SPOKEN) and _enough(node):
        node["additionalProperties"] = False
    return node


def _enough(node: dict[str, Any]) -> bool:
    """Whether the listed properties can satisfy the object's other demands."""
    listed = node["properties"]
    least = node.get("minProperties", 0)
    required = node.get("required", ())
    return not (isinstance(least, int) and least > len(listed)) and all(name in listed for name in required)
