"""One schema object without the keywords that the grammar compiler cannot enforce.

Some are rewritten to an equal form that it can. Of the rest, without `strict` the constraint becomes weaker: every
value that the schema admits stays admitted. With `strict` the client was promised the schema: `SchemaError`.
"""

from collections.abc import Callable
from typing import Any

import llguidance
import msgspec

from shoal.engine.sampling.json_schema.errors import Path, SchemaError

Node = dict[str, Any]

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri unknown".split()  # noqa: SIM905
)
"""Formats that llguidance has a grammar for."""
_MEANINGLESS = (
    *("$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
    *("$defs", "definitions", "x-guidance"),
)
"""Of no use once references are resolved; `x-guidance` would set the compiler's own options."""
_COMBINE = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")
MAX_OPTIONAL = 500
"""Optional properties between two required ones: each takes 4 of the 2,000 items that a row of the parser holds."""
NULLABLE = ("const", "default", "enum", "example")
"""Keywords for which null is a value, not the absence of one."""
NEVER_ENFORCED = ("not", "if", "then", "else", "contains", "contentSchema", "propertyNames")
"""Keywords whose own schemas are never compiled, so that nothing is looked for in them."""


def relaxed(schema: Node, path: Path, *, strict: bool) -> Node:
    """Return `schema` without what cannot be enforced, its own level only. `path` is for `SchemaError`."""
    node = {k: v for k, v in schema.items() if k not in _MEANINGLESS}
    _check_types(node, path)
    _check_optional(node, path)

    def give_up(keyword: str, reason: str) -> None:
        if strict:
            value = node.get(keyword)
            raise SchemaError((*path, keyword), value, f"{reason}; leave it out, or leave out strict: true")
        node.pop(keyword, None)

    _draft_4_bounds(node)
    _names(node, give_up)
    _unevaluated(node, give_up)
    _arrays(node, give_up)
    _conditions(node, give_up)
    _strings(node, give_up)
    _patterns(node, give_up)
    if not strict and isinstance(node.get("oneOf"), list):
        _one_of(node)
    return node


def _check_types(node: Node, path: Path) -> None:
    types = node.get("type", [])
    for place, name in enumerate(types) if isinstance(types, list) else [(None, types)]:
        if name not in TYPES:
            where = (*path, "type") if place is None else (*path, "type", place)
            raise SchemaError(where, name, f"expected one of {', '.join(TYPES)}")
    for keyword, kind, words in (
        ("properties", dict, "an object of schemas"),
        ("patternProperties", dict, "an object of schemas"),
        ("enum", list, "a list of one or more values"),
        ("allOf", list, "a list of one or more schemas"),
        ("anyOf", list, "a list of one or more schemas"),
        ("oneOf", list, "a list of one or more schemas"),
    ):
        value = node.get(keyword, {})
        if keyword in node and (not isinstance(value, kind) or (kind is list and not value)):
            raise SchemaError((*path, keyword), value, f"expected {words}")
    if isinstance(node.get("required"), bool):
        # Draft 3 marked the property itself.
        del node["required"]


def _check_optional(node: Node, path: Path) -> None:
    """Refuse more optional properties in a row than the parser can hold; compiling 8,000 takes a minute."""
    required = node.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    longest = run = 0
    for name in node.get("properties", ()):
        run = 0 if name in names else run + 1
        longest = max(longest, run)
    if longest > MAX_OPTIONAL:
        raise SchemaError(
            (*path, "properties"),
            f"{longest} optional properties in a row",
            f"expected at most {MAX_OPTIONAL}: name more of them under `required`",
        )


GiveUp = Callable[[str, str], None]
_NOT_ENFORCED = "this keyword cannot be enforced"


def _draft_4_bounds(node: Node) -> None:
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and plain in node:
            node[exclusive] = node.pop(plain)


def _names(node: Node, give_up: GiveUp) -> None:
    names = node.get("propertyNames")
    if names is None:
        return
    free = not any(k in node for k in ("properties", "patternProperties"))
    values = node.get("additionalProperties", True)
    listed = names.get("enum", [names["const"]] if "const" in names else None) if isinstance(names, dict) else None
    if names is True or names in ({}, {"type": "string"}):
        del node["propertyNames"]
    elif free and isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        del node["propertyNames"]
        node |= {"properties": dict.fromkeys(listed, values), "additionalProperties": False}
    elif free and isinstance(names, dict) and set(names) <= {"pattern", "type", "title"} and "pattern" in names:
        del node["propertyNames"]
        node |= {"patternProperties": {names["pattern"]: values}, "additionalProperties": False}
    else:
        give_up("propertyNames", _NOT_ENFORCED)


def _unevaluated(node: Node, give_up: GiveUp) -> None:
    for keyword, plain, rivals in (
        ("unevaluatedProperties", "additionalProperties", _COMBINE),
        ("unevaluatedItems", "items", (*_COMBINE, "contains", "additionalItems")),
    ):
        if keyword not in node:
            continue
        if node[keyword] in (True, {}) or plain in node:
            # What `items` and `additionalProperties` take leaves nothing unevaluated.
            del node[keyword]
        elif not any(rival in node for rival in rivals):
            node[plain] = node.pop(keyword)
        else:
            give_up(keyword, _NOT_ENFORCED)


def _arrays(node: Node, give_up: GiveUp) -> None:
    most = node.get("maxItems")
    if node.get("uniqueItems") is False or (isinstance(most, int) and most <= 1):
        node.pop("uniqueItems", None)
    if "uniqueItems" in node:
        give_up("uniqueItems", _NOT_ENFORCED)
    fewest = node.get("minContains", 1)
    if "contains" in node:
        give_up("contains", _NOT_ENFORCED)
        if isinstance(fewest, int) and isinstance(node.get("minItems", 0), int):
            node["minItems"] = max(fewest, node.get("minItems", 0))
    for keyword in ("minContains", "maxContains"):
        # Without `contains` they say nothing.
        node.pop(keyword, None)


def _conditions(node: Node, give_up: GiveUp) -> None:
    if "if" in node and not {"then", "else"} & node.keys():
        del node["if"]
    if "if" in node:
        give_up("if", _NOT_ENFORCED)
    for keyword in ("then", "else"):
        node.pop(keyword, None)
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        if not node.get(keyword, True):
            del node[keyword]
    for keyword in ("not", "dependencies", "dependentRequired", "dependentSchemas"):
        if keyword in node:
            give_up(keyword, _NOT_ENFORCED)


def _strings(node: Node, give_up: GiveUp) -> None:
    types = node.get("type", "string")
    if types != "string" and "string" not in types:
        # `int32` of a number and the like: annotations, which bind nobody.
        node.pop("format", None)
    if "format" in node and node["format"] not in _FORMATS:
        give_up("format", f"this format cannot be enforced, only {', '.join(sorted(_FORMATS - {'unknown'}))}")
    if "pattern" in node and (reason := regex_error(node["pattern"])):
        give_up("pattern", reason)


def _patterns(node: Node, give_up: GiveUp) -> None:
    patterns = node.get("patternProperties")
    if not patterns:
        return
    reason = next(filter(None, map(regex_error, patterns)), "") or _overlap(tuple(patterns))
    if not reason:
        return
    give_up("patternProperties", reason)
    others = node.get("additionalProperties", True)
    if others is False or isinstance(others, dict):
        values = [*patterns.values(), *([others] if others else [])]
        node["additionalProperties"] = values[0] if len(values) == 1 else {"anyOf": values}


def _one_of(node: Node) -> None:
    options = {"anyOf": node.pop("oneOf")}
    if "anyOf" in node:
        node["allOf"] = [*node.get("allOf", []), options]
    else:
        node |= options


def regex_error(pattern: object) -> str:
    """Return why a pattern cannot be compiled; empty: it can."""
    if not isinstance(pattern, str):
        return "expected a regular expression"
    return _compile_error({"type": "string", "pattern": pattern})


def _overlap(patterns: tuple[str, ...]) -> str:
    return _compile_error({"type": "object", "patternProperties": {pattern: {} for pattern in patterns}})


def _compile_error(schema: Node) -> str:
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(msgspec.json.encode(schema).decode())
        message = str(llguidance.LLMatcher.validate_grammar(grammar, None))
    except ValueError as error:
        message = str(error) or "it cannot be compiled"
    # The parser draws the place on lines of its own; what is wrong stands last.
    return message.strip().rsplit("\n", 1)[-1].removeprefix("error: ")[:200]
