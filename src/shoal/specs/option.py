"""What a field of an options struct says about itself to the command line and to the documentation.

    tp: Annotated[int, Option("Ranks that share every layer.", minimum=1)] = 1

`shoal.cli.options` makes command-line options of such fields; `validate` of the struct reads the same bounds.
"""

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of one field, in `Annotated`. Type, default and choices (a Literal) are the field's own."""

    help: str
    """One or two sentences; `{choices}` stands for the values of the field's Literal."""
    minimum: int | None = None
    maximum: int | None = None
    name: str | None = None
    """Name of the command-line parameter; default: the field's."""
    on_command_line: bool = True
    """False: for configuration files and programs only."""
    metavar: str | None = None
    variable: str | None = None
    """Environment variable that gives the value too. Such a value is a secret: no default is shown."""
    unit: int = 1
    """The field's value is this many times the command line's."""
    parse: Callable[[str], Any] | None = None
    """Makes the field's value, or an item of a tuple field, of the command line's text. Raises ValueError."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field that has an `Option`, with its type taken apart."""

    name: str
    option: Option
    type: type
    """`int`, `float`, `bool`, `str` or `tuple`; of `T | None`, T."""
    choices: tuple[str, ...]
    """Of a Literal; otherwise empty."""

    @property
    def parameter(self) -> str:
        """Name of the command-line parameter."""
        return self.option.name or self.name

    @property
    def help(self) -> str:
        return self.option.help.replace("{choices}", spoken(self.choices))


def spoken(choices: tuple[str, ...]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, [", ".join(choices[:-1]), *choices[-1:]]))


@functools.cache
def option_fields(struct: type) -> Mapping[str, OptionField]:
    """Return the fields of a struct that have an `Option`, by name, in their order."""
    found: dict[str, OptionField] = {}
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
        if option is not None:
            kind, choices = _taken_apart(hint.__origin__)
            found[name] = OptionField(name, option, kind, choices)
    return types.MappingProxyType(found)


def _taken_apart(kind: Any) -> tuple[type, tuple[str, ...]]:
    """Return the plain type of a field's type, and the choices of a Literal."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is Literal:
        return str, typing.get_args(kind)
    plain: type = typing.get_origin(kind) or kind
    return plain, ()
