"""Tools of a Responses request as the chat core knows them: functions, each under one flat name.

function     as it is
custom       free text: a function of one string, `input`
namespace    its functions, as `namespace__function`

What a model's call means to the client is looked up by that flat name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from shoal.http.errors import ApiError, bad_value
from shoal.server.fields import JsonObject
from shoal.server.protocol import FunctionDefinition, NamedFunction, NamedToolChoice, Tool
from shoal.server.responses.request import ResponseTool, ResponseToolChoice

_HOSTED_IGNORED = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
    "tool_search",
)
"""Tools that OpenAI's servers run and that Codex adds by itself: the model is not told of them
(llama.cpp#20156: refusing them stops every Codex session)."""
_INPUT: JsonObject = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ChatToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the model is told of, and how its calls are sent to the client."""

    tool: Tool
    kind: Literal["function", "custom"]
    at: str
    """Where it is in the request."""
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools and choice of one request."""

    tools: Mapping[str, OfferedTool]
    choice: ChatToolChoice | None

    @property
    def chat_tools(self) -> list[Tool] | None:
        return [offered.tool for offered in self.tools.values()] or None

    @property
    def schema_fields(self) -> dict[str, str]:
        """The chat core's names of the tools' schemas, and where they are in the request."""
        places = enumerate(self.tools.values())
        return {f"tools[{i}].function.parameters": f"{offered.at}.parameters" for i, offered in places}


def offer_of(specs: Sequence[ResponseTool], choice: str | ResponseToolChoice | None) -> Offer:
    """What the model is told of; `ApiError` 400 for tools and choices that can't be served."""
    tools: dict[str, OfferedTool] = {}
    for place, spec in enumerate(specs):
        for flat, offered in _offered(spec, f"tools[{place}]"):
            if flat in tools:
                raise bad_value(f"tools[{place}].name", flat, "expected every name once")
            tools[flat] = offered
    if isinstance(choice, ResponseToolChoice):
        return _chosen(tools, choice)
    wanted: ChatToolChoice | None = msgspec.convert(choice, Literal["none", "auto", "required"] | None)
    if choice == "auto" and not tools:
        wanted = None
    return Offer(tools, wanted)


def _offered(spec: ResponseTool, at: str) -> list[tuple[str, OfferedTool]]:
    if spec.type in _HOSTED_IGNORED:
        return []
    if spec.type not in ("function", "custom", "namespace"):
        raise bad_value(
            f"{at}.type", spec.type, "expected function, custom or namespace: no tool runs on this server"
        )
    if spec.name is None:
        raise ApiError(400, f"{at}.name is required", param=f"{at}.name", code="missing_required_parameter")
    if spec.type == "function":
        function = FunctionDefinition(spec.name, spec.description, spec.parameters, spec.strict)
        return [(spec.name, OfferedTool(Tool(function), "function", at, spec.name))]
    if spec.type == "custom":
        function = FunctionDefinition(spec.name, _custom_description(spec), _INPUT)
        return [(spec.name, OfferedTool(Tool(function), "custom", at, spec.name))]
    found = []
    for place, inner in enumerate(spec.tools or ()):
        if inner.type != "function":
            raise bad_value(f"{at}.tools[{place}].type", inner.type, "expected function")
        for name, offered in _offered(inner, f"{at}.tools[{place}]"):
            flat = flat_name(name, spec.name)
            function = msgspec.structs.replace(offered.tool.function, name=flat)
            found.append((flat, OfferedTool(Tool(function), "function", offered.at, name, spec.name)))
    return found


def flat_name(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


def _custom_description(spec: ResponseTool) -> str | None:
    form = spec.format or {}
    if form.get("type") != "grammar":
        return spec.description
    told = f"The input must follow this {form.get('syntax', 'lark')} grammar:\n{form.get('definition', '')}"
    return f"{spec.description}\n\n{told}" if spec.description else told


def _chosen(tools: Mapping[str, OfferedTool], choice: ResponseToolChoice) -> Offer:
    if choice.type in ("function", "custom"):
        name = flat_name(choice.name or "", choice.namespace)
        if name not in tools:
            raise bad_value("tool_choice", name, "expected one of the tools: " + (", ".join(tools) or "none given"))
        return Offer(tools, NamedToolChoice(NamedFunction(name)))
    if choice.type == "allowed_tools":
        names = [
            flat_name(t.name or "", t.namespace) for t in choice.tools or () if t.type in ("function", "custom")
        ]
        for name in names:
            if name not in tools:
                raise bad_value("tool_choice.tools", name, "expected names of tools")
        allowed = {name: offered for name, offered in tools.items() if name in names}
        return Offer(allowed, choice.mode or "auto" if allowed else None)
    raise bad_value("tool_choice.type", choice.type, "expected function, custom or allowed_tools")
