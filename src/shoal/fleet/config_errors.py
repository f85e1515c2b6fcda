"""msgspec's messages about `fleet.yaml`, turned into errors that name path, value and what would do."""

import re
import types
import typing
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from shoal.fleet.config import ConfigError
from shoal.specs.errors import near_names

_RULE = re.compile(
    r"^(?:key '[^']*': )?([\w.]+)"
    r"(?: is .*?; (?:it must be|expected)| must be|: .*? is not accepted; expected) (.+)$",
    re.DOTALL,
)
"""Errors that sections raise about themselves."""
_WORDS = MappingProxyType(
    {"array": "a list", "object": "a mapping", "str": "text", "int": "a whole number", "float": "a number",
     "bool": "true or false"}
)  # fmt: skip
"""msgspec's names of types, in a user's words."""
_TYPES = re.compile(rf"\b({'|'.join(_WORDS)})\b")


def check_known(given: Mapping[Any, object], names: Iterable[str], path: str) -> None:
    """Raise `ConfigError` for a name that isn't among these."""
    known = sorted(names)
    for name in given:
        if name not in known:
            near = near_names(str(name), known)
            accepted = f"{' or '.join(near)} (nearest)" if near else f"one of {', '.join(known)}"
            value = "(not shown)" if path.startswith("keys") else given[name]
            raise ConfigError(f"{path}.{name}" if path else str(name), value, f"another field: {accepted}")


def convert(raw: Mapping[str, object], kind: Any, path: str) -> Any:
    """Return `raw` as `kind`. Raises `ConfigError`."""
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _translated(str(error), raw, kind, path) from None


def _translated(message: str, raw: object, kind: Any, path: str) -> ConfigError:
    """msgspec's message, with the value it speaks of: `Expected `int`, got `str` - at `$.pools[0].replicas``."""
    if " - at `key` in `$" in message:
        at = message.rpartition("`$")[2].rstrip("`").lstrip(".")
        return ConfigError(_joined(path, at), _value_at(raw, at), "names that are text")
    what, _, at = message.rpartition(" - at `$")
    if not what:
        what, at = message, ""
    at = at.rstrip("`").lstrip(".")
    if missing := re.match(r"Object missing required field `(\w+)`", what):
        field = f"{at}.{missing[1]}" if at else missing[1]
        return ConfigError(_joined(path, field), None, "a value: it is required")
    if unknown := re.match(r"Object contains unknown field `([^`]+)`", what):
        field = f"{at}.{unknown[1]}" if at else unknown[1]
        names = _fields_at(kind, at)
        near = near_names(unknown[1], names)
        accepted = f"{' or '.join(near)} (nearest)" if near else f"one of {', '.join(sorted(names))}"
        return ConfigError(_joined(path, field), _value_at(raw, field), f"another field: {accepted}")
    if what.startswith("Invalid enum value"):
        choices = [str(choice) for found in _types_at(kind, at) for choice in typing.get_args(found)]
        return ConfigError(_joined(path, at), _value_at(raw, at), f"one of {', '.join(choices)}")
    if rule := _RULE.match(what):
        field = _joined(path, f"{at}.{rule[1].rpartition('.')[2]}" if at else rule[1])
        return ConfigError(field, _value_at(raw, field), rule[2])
    accepted = what.removeprefix("Expected ").split(", got ")[0].replace("`", "").replace(" | null", "")
    accepted = _TYPES.sub(lambda found: _WORDS[found[1]], accepted).replace(" | ", " or ").replace("regex ", "")
    return ConfigError(_joined(path, at), _value_at(raw, at), accepted)


def _types_at(kind: Any, at: str) -> list[Any]:
    """Return the types that a value at this path may have; a Literal counts as one."""
    found = _options(kind)
    for step in re.findall(r"[^.\[\]]+", at):
        if step.isdigit() or step == "...":
            inner = [typing.get_args(one)[0] for one in found if typing.get_origin(one) in (tuple, list)]
        else:
            inner = [
                typing.get_type_hints(one)[step] for one in found if step in getattr(one, "__annotations__", ())
            ]
        found = [one for each in inner for one in _options(each)]
    return found


def _options(kind: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [one for each in typing.get_args(kind) for one in _options(each)]
    return [kind]


def _fields_at(kind: Any, at: str) -> list[str]:
    return [name for one in _types_at(kind, at) for name in getattr(one, "__struct_fields__", ())]


def _joined(path: str, at: str) -> str:
    return ".".join(part for part in (path, at) if part) or "the file"


def _value_at(raw: object, at: str) -> object:
    if at.startswith("keys"):
        # Somebody may have written a key where its digest belongs.
        return "(not shown)"
    for step in re.findall(r"[^.\[\]]+", at):
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, list | tuple) and step.isdigit() and int(step) < len(raw):
            raw = raw[int(step)]
        else:
            return None
    return raw
