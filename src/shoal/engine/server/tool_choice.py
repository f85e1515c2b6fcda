"""What `tools` and `tool_choice` ask for: the tools shown to the model, and the schema its output must follow."""

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.engine.sampling.params import GuidedParams
from shoal.engine.server.errors import ApiError, bad_value
from shoal.engine.server.protocol import ChatRequest, NamedToolChoice, Tool

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


def active_tools(body: ChatRequest) -> list[Tool]:
    """The tools the model is told of; 400 where choice and tools contradict each other."""
    tools, choice = body.tools or [], body.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_value("tools", names, "expected every function name once")
    if choice in (None, "none", "auto"):
        return [] if choice == "none" else tools
    if not tools:
        raise ApiError(400, "tool_choice needs tools", param="tools", code="missing_required_parameter")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        accepted = "expected one of the tools: " + ", ".join(names)
        raise bad_value("tool_choice", choice.function.name, accepted)
    return tools


def tool_constraint(body: ChatRequest, tools: Sequence[Tool]) -> GuidedParams | None:
    """The JSON schema that makes the model call, for `required` and a named function."""
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice):
        chosen = next(tool for tool in tools if tool.function.name == choice.function.name)
        return _schema(_arguments(chosen))
    if choice == "required":
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": _arguments(tool)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        most = {"maxItems": 1} if body.parallel_tool_calls is False else {}
        return _schema({"type": "array", "minItems": 1, "items": {"anyOf": calls}, **most})
    return None


def _arguments(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or _NO_ARGUMENTS


def _schema(schema: dict[str, Any]) -> GuidedParams:
    return GuidedParams("json_schema", msgspec.json.encode(schema).decode())
