"""Arguments of tool calls: as the model wrote them, and typed where its notation writes bare text."""

import json

import pytest

from shoal.engine.text.tools import ToolCall, tool_parser
from tool_text_kit import parse_tool_calls

RAW = '{"price": 1.10,  "big": 12345678901234567890123, "e": 1E+2, "s": "\\u00e9/\\/"}'


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {RAW}}}</tool_call>'),
        ("hermes", f'<tool_call>[{{"name": "f", "arguments": {json.dumps(RAW)}}}]</tool_call>'),
        ("llama", f'{{"name": "f", "parameters": {RAW}}}'),
        ("mistral", f'[TOOL_CALLS][{{"name": "f", "arguments": {RAW}}}]'),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{RAW}"),
        ("pythonic", f'```tool_code\n{{"name": "f", "arguments": {RAW}}}\n```'),
        ("deepseek", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{RAW}<｜tool▁call▁end｜>"),
        ("harmony", f"<|channel|>commentary to=functions.f<|message|>{RAW}<|call|>"),
    ],
)
def test_arguments_are_the_text_the_model_wrote(tool_format, text):
    """1.10 became 1.1, spaces and escapes were written anew."""
    assert parse_tool_calls(tool_format, text) == ("", [ToolCall("f", RAW)])


def test_control_characters_in_strings_are_escaped():
    text = '<tool_call>{"name": "f", "arguments": {"a": "1\n\t2"}}</tool_call>'
    assert parse_tool_calls("hermes", text)[1] == [ToolCall("f", '{"a": "1\\n\\t2"}')]


@pytest.mark.parametrize("value", ['"\\ud83d"', "[1e999]", "NaN"])
def test_what_cannot_be_sent_fails_no_encoder(value):
    for tool_format, text in (
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>'),
        ("pythonic", f"```tool_code\nf(a={value})\n```"),
        ("llama", f'{{"name": {value}, "parameters": {{}}}}'),
    ):
        content, calls = parse_tool_calls(tool_format, text)
        (content + "".join(call.name + call.arguments for call in calls)).encode()
        for call in calls:
            json.loads(call.arguments)


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "force": {"type": "boolean"},
        "items": {"type": "array"},
        "options": {"$ref": "#/$defs/a~1b"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "level": {"enum": [1, 2]},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {"a/b": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "5", '"5"'),
        ("text", "null", '"null"'),
        ("text", '  a "b"\n', '"  a \\"b\\"\\n"'),
        ("text", "</function></tool_call> <parameter=x> </parameter> .", None),
        ("count", "5", "5"),
        ("count", "2026-01-15", '"2026-01-15"'),
        ("ratio", "1.10", "1.10"),
        ("ratio", "1e999", '"1e999"'),
        ("force", "True", "true"),
        ("items", '[1, "a"]', '[1, "a"]'),
        ("items", "['a', True]", '["a", true]'),
        ("options", '{"b": 1.0}', '{"b": 1.0}'),
        ("maybe", "null", "null"),
        ("maybe", "x", '"x"'),
        ("level", "2", "2"),
        ("loop", "1", '"1"'),
        ("unknown", "7", '"7"'),
    ],
)
@pytest.mark.parametrize("mark", ["", "seed:"])
def test_tagged_values_take_the_schemas_type(key, value, expected, mark):
    call = f"<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>"
    tool_format = "seed" if mark else "qwen_coder"
    parser = tool_parser(tool_format, {"f": SCHEMA})
    events = parser.push(f"<{mark}tool_call>\n{call}\n</{mark}tool_call>") + parser.flush()
    assert events == [ToolCall("f", f'{{"{key}": {expected or json.dumps(value)}}}')]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [ToolCall("f", "{}")]),
        (
            "I write.\n<function=f><parameter=a>1</parameter></function>\n</tool_call>",
            "I write.",
            [ToolCall("f", '{"a": "1"}')],
        ),
        # vllm#23099, #37829: closing tags left out.
        (
            "<tool_call><function=f>\n<parameter=city>\nDallas\n<parameter=state>\nTX\n</function>\n</tool_call>",
            "",
            [ToolCall("f", '{"city": "Dallas", "state": "TX"}')],
        ),
        # Cut off: nothing is called with half of its text.
        (
            "<tool_call><function=f>\n<parameter=a>\nrm -rf /tm",
            "<tool_call><function=f>\n<parameter=a>\nrm -rf /tm",
            [],
        ),
        # vllm#55497: a malformed tag isn't a parameter, and swallows none.
        (
            "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=\n2\n</parameter>\n</function>",
            "",
            [ToolCall("f", '{"a": "1\\n</parameter>\\n<parameter=\\n2"}')],
        ),
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "", [ToolCall("f", "{}")]),
        ("<function=f", "<function=f", []),
        ("<function=> x", "<function=> x", []),
    ],
)
def test_qwen_coder(text, content, calls):
    assert parse_tool_calls("qwen_coder", text) == (content, calls)


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}\n<tool_call>'),
        ("pythonic", "```tool_code\nf(a='''</tool_call>''')  # it's ```\n```"),
        ("pythonic", "```tool_code\nf(a='</tool_call>')"),
    ],
)
def test_broken_layout_around_a_whole_call(tool_format, text):
    content, calls = parse_tool_calls(tool_format, text)
    assert [json.loads(call.arguments) for call in calls] == [{"a": "</tool_call>"}]
    assert content in ("", "<tool_call>")


def test_a_broken_call_costs_only_itself():
    text = '<tool_call>{"name": "f</tool_call> and <tool_call>{"name": "g"}</tool_call>'
    assert parse_tool_calls("hermes", text) == (
        '<tool_call>{"name": "f</tool_call> and',
        [ToolCall("g", "{}")],
    )
