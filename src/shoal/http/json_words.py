"""msgspec's words for what is wrong, in JSON's terms: a client knows strings and numbers, not `str` and `float`."""

import re

_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_HALF_PAIR = re.compile(
    rb"(?<!\\)\\u[dD](?:[89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89aAbB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""A \\u escape without its other half, as a client writes that cuts a string within an emoji."""
_QUOTED = re.compile(r"`([a-z| ]+)`")
_INVALID = re.compile(r"^Invalid (?:enum )?value (.*)$", re.DOTALL)


def in_json_terms(message: str) -> str:
    """Return msgspec's message without Python's names: ``Expected `int | null`, got `str``` and the like."""
    if invalid := _INVALID.match(message):
        return f"{invalid[1]} is not accepted"
    words = _QUOTED.sub(_type, message)
    return words[:1].lower() + words[1:]


def malformed(body: bytes | bytearray, message: str) -> str:
    """Return msgspec's message on a body that is not JSON, which for half a surrogate pair may speak of the end."""
    if ("surrogate" in message or "truncated" in message) and (half := _HALF_PAIR.search(body)):
        return f"{half[0].decode()} is half of a surrogate pair (byte {half.start()})"
    return message


def _type(match: re.Match[str]) -> str:
    names = [name.strip() for name in match[1].split("|")]
    if any(name not in _TYPES for name in names):
        return match[0]
    if "float" in names and "int" in names:
        names.remove("int")
    return " or ".join(_TYPES[name] for name in names)
