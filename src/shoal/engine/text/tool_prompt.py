"""Tools for a model whose chat template knows none: said in a system message, in the `hermes` notation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.engine.text.tool_json import loads

_INSTRUCTIONS = """\
You can call the functions listed between <tools> and </tools>, one JSON description a line:
<tools>
{tools}
</tools>
To call functions, answer with a JSON list between <tool_call> and </tool_call> and nothing else, for example:
<tool_call>[{{"name": "function_name", "arguments": {{"argument": "value"}}}}]</tool_call>
If no function is needed, answer as usual."""


def with_tool_prompt(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with the tools described up front, and earlier calls and results as plain text."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    prompt = _INSTRUCTIONS.format(tools=listed)
    rewritten = [_as_text(message) for message in messages]
    if rewritten and rewritten[0].get("role") == "system":
        rewritten[0]["content"] = f"{rewritten[0]['content']}\n\n{prompt}"
        return rewritten
    return [{"role": "system", "content": prompt}, *rewritten]


def _as_call(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = loads(arguments) or arguments
    return {"name": function["name"], "arguments": arguments}


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(message)
    calls = result.pop("tool_calls", None)
    if calls:
        listed = [_as_call(call["function"]) for call in calls]
        written = f"<tool_call>{json.dumps(listed, ensure_ascii=False)}</tool_call>"
        result["content"] = f"{result['content']}\n{written}" if result.get("content") else written
    elif result.get("role") == "tool":
        result = {"role": "user", "content": f"<tool_response>{result.get('content') or ''}</tool_response>"}
    return result
