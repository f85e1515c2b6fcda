"""How each family writes calls, for tests that need any call in any notation."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, get_args

from shoal.engine.text.tools import Event, Reasoning, ToolCall, ToolFormat, tool_parser

FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)
MARKS = (
    *("<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<|python_tag|>"),
    *("<function=", "<function=f>", "</function>", "<parameter=", "<parameter=p>", "</parameter>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "```tool_code", "```", "```json", "function"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|start|>", " to=functions.f"),
    *("commentary", "analysis", "final"),
)
"""Every mark of every notation."""

Arguments = dict[str, Any]
Call = tuple[str, Arguments]


def _object(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False)


def _tagged(call: Call) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call[1].items())
    return f"<function={call[0]}>\n{values}</function>"


def _deepseek(calls: Iterable[Call], start: str, end: str) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>{start.format(name)}{json.dumps(arguments, ensure_ascii=False)}{end}"
        "<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def _harmony(call: Call) -> str:
    body = json.dumps(call[1], ensure_ascii=False)
    return (
        f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{body}<|call|><|start|>assistant"
    )


WRITERS: dict[str, tuple[ToolFormat, Callable[[list[Call]], str]]] = {
    "hermes": ("hermes", lambda calls: "\n".join(f"<tool_call>\n{_object(c)}\n</tool_call>" for c in calls)),
    "hermes list": ("hermes", lambda calls: f"<tool_call>[{', '.join(map(_object, calls))}]</tool_call>"),
    "qwen_coder": (
        "qwen_coder",
        lambda calls: "\n".join(f"<tool_call>\n{_tagged(c)}\n</tool_call>" for c in calls),
    ),
    "qwen_coder bare": ("qwen_coder", lambda calls: "\n".join(f"{_tagged(c)}\n</tool_call>" for c in calls)),
    "seed": ("seed", lambda calls: "\n".join(f"<seed:tool_call>\n{_tagged(c)}\n</seed:tool_call>" for c in calls)),
    "llama": ("llama", lambda calls: "; ".join(_object(c, "parameters") for c in calls)),
    "llama tag": ("llama", lambda calls: "<|python_tag|>" + ";".join(_object(c, "parameters") for c in calls)),
    "mistral list": ("mistral", lambda calls: f"[TOOL_CALLS][{', '.join(map(_object, calls))}]"),
    "mistral v11": (
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a, ensure_ascii=False)}" for n, a in calls),
    ),
    "pythonic": ("pythonic", lambda calls: "```tool_code\n" + "\n".join(map(_python, calls)) + "\n```"),
    "deepseek v3": (
        "deepseek",
        lambda calls: _deepseek(calls, "function<｜tool▁sep｜>{}\n```json\n", "\n```"),
    ),
    "deepseek v3.1": ("deepseek", lambda calls: _deepseek(calls, "{}<｜tool▁sep｜>", "")),
    "harmony": ("harmony", lambda calls: "".join(map(_harmony, calls))),
}
"""A name, the format that reads it, and what writes several calls."""

TAGGED = ("qwen_coder", "qwen_coder bare", "seed")
"""Notations without quotes: a value can't hold a closing tag that the next tag follows."""


def is_tag_end(value: str) -> bool:
    """Whether tagged text would end within `value`, or at its end."""
    return re.search(r"</parameter>\s*(<parameter=|</function>)", f"{value}\n") is not None


def merged(events: Iterable[Event]) -> list[Event]:
    """Events with adjacent text put together: how it is cut is the stream's affair."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, str) and isinstance(last, str):
            result[-1] = last + event
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + event.text)
        else:
            result.append(event)
    return result


def read(tool_format: ToolFormat, text: str, cuts: Iterable[int] = ()) -> list[Event]:
    """Events of `text`, pushed in pieces that end at `cuts`."""
    parser, events, at = tool_parser(tool_format), list[Event](), 0
    for cut in [*sorted(c for c in set(cuts) if c < len(text)), len(text)]:
        events += parser.push(text[at:cut])
        at = cut
    return merged(events + parser.flush())


def parse_tool_calls(tool_format: ToolFormat, text: str) -> tuple[str, list[ToolCall]]:
    """Content and calls of a whole answer."""
    parser = tool_parser(tool_format)
    events = parser.push(text) + parser.flush()
    content = "".join(event for event in events if isinstance(event, str))
    return content, [event for event in events if isinstance(event, ToolCall)]
