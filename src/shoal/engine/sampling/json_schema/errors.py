"""What is wrong with a schema, and where."""

import re

_PLAIN = re.compile(r"^[A-Za-z0-9_$\-]+$")

Path = tuple[str | int, ...]
"""Keys and indexes from the root of the client's schema."""


class SchemaError(ValueError):
    """A schema that cannot be compiled: `path` leads to the keyword, `reason` says what would be accepted."""

    def __init__(self, path: Path, value: object, reason: str) -> None:
        self.path = path
        self.value = value
        self.reason = reason
        super().__init__(f"{show_path(path).lstrip('.') or 'the schema'}: {reason}")

    @property
    def accepted(self) -> str:
        """Return `reason` for a sentence that goes on after "expected"."""
        named = self.reason.removeprefix("expected ")
        return f"another value: {self.reason}" if named == self.reason else named


def show_path(path: Path) -> str:
    """Return a path in the notation of error messages: `.properties.x.anyOf[1]`."""
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.match(step) else f"[{step!r}]"
        for step in path
    )
