"""What `tools` and `tool_choice` ask for: the tools shown to the model, and the schema its output must follow."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec

from shoal.engine.sampling.json_schema import Prepared, Schema, SchemaError, prepare, show_path
from shoal.engine.sampling.params import GuidedParams
from shoal.http.errors import ApiError, bad_value
from shoal.server.protocol import AllowedTools, AllowedToolsChoice, ChatRequest, NamedToolChoice, Tool

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_MAX_BLAMED = 128
"""Tools compiled one by one to find out whose schema is wrong."""


def settle_choice(body: ChatRequest) -> ChatRequest:
    """Return the request with `tool_choice` null, none, auto, required or a `NamedToolChoice`.

    With `allowed_tools`, only those are left in `tools`. `ApiError` 400 where choice and tools contradict.
    """
    tools, choice = body.tools or [], body.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_value("tools", names, "expected every function name once")
    if choice == "any":
        choice = "required"
    elif isinstance(choice, AllowedToolsChoice):
        allowed, choice = _allowed(choice, names)
        tools = [tool for tool in tools if tool.function.name in allowed]
    if choice not in (None, "none", "auto") and not tools:
        raise ApiError(400, "tool_choice needs tools", param="tools", code="missing_required_parameter")
    if isinstance(choice, NamedToolChoice):
        _check_known("tool_choice", choice.function.name, names)
    return msgspec.structs.replace(body, tools=tools or None, tool_choice=choice)


def _allowed(choice: AllowedToolsChoice, names: list[str]) -> tuple[set[str], Literal["auto", "required"]]:
    asked = choice.allowed_tools or AllowedTools(choice.tools or [], choice.mode or "auto")
    for place, tool in enumerate(asked.tools):
        where = "tool_choice.allowed_tools" if choice.allowed_tools else "tool_choice"
        _check_known(f"{where}.tools[{place}]", tool.function.name, names)
    return {tool.function.name for tool in asked.tools}, asked.mode


def _check_known(field: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise bad_value(field, name, "expected one of the tools: " + (", ".join(names) or "none is given"))


def active_tools(body: ChatRequest) -> list[Tool]:
    """Return the tools that the model is told of. The choice is settled (`settle_choice`)."""
    return [] if body.tool_choice == "none" else body.tools or []


def constrains(body: ChatRequest) -> bool:
    """Whether `tool_choice` makes the model call, by a schema that its output must follow."""
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedToolChoice)


def tool_constraint(body: ChatRequest) -> GuidedParams | None:
    """The JSON schema that makes the model call, for `required` and a named function.

    `ApiError` 400 names the place in the tool's own schema. Best called off the event loop: schemas may be long.
    """
    choice, tools = body.tool_choice, body.tools or []
    if isinstance(choice, NamedToolChoice):
        place = next(i for i, tool in enumerate(tools) if tool.function.name == choice.function.name)
        return _guided(_arguments(place, tools[place]).document(), [tools[place]])
    if choice != "required":
        return None
    definitions: dict[str, Schema] = {}
    calls = []
    for place, tool in enumerate(tools):
        # Two tools may use one name for different things: each definition gets a name of its own.
        arguments = _arguments(place, tool, taken=definitions)
        definitions |= arguments.definitions
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": arguments.schema},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    most = {"maxItems": 1} if body.parallel_tool_calls is False else {}
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, **most}
    return _guided({**schema, "$defs": definitions} if definitions else schema, tools)


def blamed_tool(body: ChatRequest, compiles: Callable[[GuidedParams], bool]) -> int | None:
    """Return the index of the tool whose schema is to blame for a constraint that did not compile.

    None where no tool's schema is part of the constraint.
    """
    if not constrains(body):
        return None
    tools = body.tools or []
    choice = body.tool_choice
    chosen = [
        place
        for place, tool in enumerate(tools)
        if not isinstance(choice, NamedToolChoice) or tool.function.name == choice.function.name
    ]
    for place in chosen[:_MAX_BLAMED]:
        if not compiles(_guided(_arguments(place, tools[place]).document(), [tools[place]])):
            return place
    return chosen[0]


def _arguments(place: int, tool: Tool, taken: Collection[str] = ()) -> Prepared:
    schema = tool.function.parameters or _NO_ARGUMENTS
    field = f"tools[{place}].function.parameters"
    try:
        return prepare(schema, strict=tool.function.strict is True, taken=taken)
    except SchemaError as error:
        raise bad_value(f"{field}{show_path(error.path)}", error.value, error.reason) from None
    except RecursionError:
        raise bad_value(field, "schema", "it is nested too deeply") from None


def _guided(schema: Schema, tools: Sequence[Tool]) -> GuidedParams:
    # What a tool without `strict` cannot keep has been given up: the rest is compiled as it is.
    strict = any(tool.function.strict for tool in tools)
    return GuidedParams("json_schema", msgspec.json.encode(schema).decode(), strict)
