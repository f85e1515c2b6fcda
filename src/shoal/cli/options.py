"""Command-line options made of the fields of options structs: types, defaults, help, choices and bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from shoal.specs.option import OptionField, option_fields

Command = TypeVar("Command", bound=Callable[..., None])
Struct = TypeVar("Struct", bound=msgspec.Struct)


def options_of(*structs: type[msgspec.Struct], only: Collection[str] = ()) -> Callable[[Command], Command]:
    """Decorate a command whose last parameter is `**options`: give it one option per field of these structs.

    Args:
        only: Names of fields; empty: all that are for the command line.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        *own, rest = signature.parameters.values()
        assert rest.kind is inspect.Parameter.VAR_KEYWORD
        made = [
            _parameter(field, _default(struct, field))
            for struct in structs
            for name, field in option_fields(struct).items()
            if field.option.on_command_line and (not only or name in only)
        ]
        # typer asks `inspect.signature`, which reads this attribute first.
        command.__dict__["__signature__"] = signature.replace(parameters=[*own, *made])
        return command

    return decorate


def struct_of(struct: type[Struct], options: Mapping[str, Any], **fields: object) -> Struct:
    """Return the struct that these options and `fields` describe, not yet validated.

    An empty text counts as not given, as with `--host "$HOST"` where the variable is not set.
    """
    for name, field in option_fields(struct).items():
        given = options.get(field.parameter)
        unset = given is None or (given == "" and field.type is str and not field.choices)
        if not unset:
            fields[name] = _value(field, given)
    return struct(**fields)


def _parameter(field: OptionField, default: Any) -> inspect.Parameter:
    option = field.option
    plain: Any = str if option.parse is not None else field.type
    if field.type is tuple:
        plain, default = list[str], None
    elif default is not None:
        default = default // option.unit if option.unit != 1 else default
    info = typer.Option(
        min=option.minimum if plain in (int, float) else None,
        max=option.maximum if plain in (int, float) else None,
        metavar=option.metavar,
        envvar=option.variable,
        show_default=option.variable is None,
        help=field.help,
    )
    return inspect.Parameter(
        field.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[plain if default is not None else plain | None, info],
    )


def _default(struct: type[msgspec.Struct], field: OptionField) -> Any:
    found = next(each for each in msgspec.structs.fields(struct) if each.name == field.name)
    assert found.default is not msgspec.NODEFAULT, f"{field.name} needs a default"
    return found.default


def _value(field: OptionField, given: Any) -> Any:
    """Return the field's value of what the command line gave."""
    parse = field.option.parse
    if field.type is tuple:
        return tuple(parse(text) if parse is not None else text for text in given)
    if parse is not None:
        return parse(given)
    return given * field.option.unit if field.option.unit != 1 else given
