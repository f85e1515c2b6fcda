"""Tool calls in each family's notation: whole answers, any cut of them, and what is no call."""

from typing import get_args

import pytest

from shoal.engine.text.tools import (
    ToolCall,
    ToolFormat,
    needs_special_tokens,
    tool_format_of,
    tool_parser,
)
from tool_text_kit import parse_tool_calls

F, G = ToolCall("f", '{"a": 1}'), ToolCall("g", "{}")

CASES = {
    "hermes": [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [F]),
        ('<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>', "", [F, G]),
        ('Wait.\n<tool_call>{"name":"f","arguments":{"a": 1}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>\n',
         "Wait.", [F, G]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> done', "done", [F]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [F]),
        ('<tool_call>{"type":"function","function":{"name":"f","arguments":{"a": 1}}}</tool_call>', "", [F]),
        ("<tool_call>nonsense</tool_call> after", "<tool_call>nonsense</tool_call> after", []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
         '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
         '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', []),
        ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
        ("1 < 2 <tool", "1 < 2 <tool", []),
        ("  plain  \n", "  plain  \n", []),
        ("", "", []),
    ],
    "llama": [
        ('{"name": "f", "parameters": {"a": 1}}', "", [F]),
        ('\n{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "", [F, G]),
        ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [F]),
        ('Sure <|python_tag|>f.call(a=1)', "Sure", [F]),
        ('{"answer": 42} is it', '{"answer": 42} is it', []),
        ('{"name": "f", "par', '{"name": "f", "par', []),
        ("{not json", "{not json", []),
        (" hello {", " hello {", []),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "x9"}]', "", [ToolCall("f", '{"a": 1}', "x9")]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [F, G]),
        ('[TOOL_CALLS]f[CALL_ID]c1[ARGS]{"a": 1}', "", [ToolCall("f", '{"a": 1}', "c1")]),
        ('ok [TOOL_CALLS]f{"a": 1}', "ok", [F]),
        ("[TOOL_CALLS] [oops", "[TOOL_CALLS] [oops", []),
        ("[TOOL", "[TOOL", []),
    ],
    "pythonic": [
        ("```tool_code\nf(a=1)\n```", "", [F]),
        ("I look.\n```tool_code\nprint(f(a=1))\ng()\n```\n", "I look.", [F, G]),
        ("```tool_code\n[f(a=1), g()]\n```", "", [F, G]),
        ('```tool_code\n{"name": "f", "arguments": {"a": 1}}\n```', "", [F]),
        ("```tool_code\nf(1)\n```", "```tool_code\nf(1)\n```", []),
        ("```tool_code\nf(a=open('x'))\n```", "```tool_code\nf(a=open('x'))\n```", []),
        ("```tool_code\nimport os\n```", "```tool_code\nimport os\n```", []),
        ("```tool_code\nf(**{'a': 1})\n```", "```tool_code\nf(**{'a': 1})\n```", []),
        ("```python\nf(a=1)\n```", "```python\nf(a=1)\n```", []),
    ],
    "deepseek": [
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
         "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>", "", [F, G]),
        ("Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>", "Hm.", [F]),
        ("<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>", []),
    ],
    "harmony": [
        ('<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary to=functions.f '
         '<|constrain|>json<|message|>{"a": 1}<|call|>', "", [F]),
        ('<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}', "", [G]),
        ("<|channel|>analysis<|message|>a < b<|end|>"
         "<|start|>assistant<|channel|>final<|message|>yes <b> <|return|>",
         "yes <b> ", []),
        ("<|channel|>commentary<|message|>I check.<|end|><|start|>assistant<|channel|>commentary to=functions.f"
         "<|message|>{\"a\": 1}", "I check.", [F]),
        ("<|channel|>commentary to=functions.f<|message|>oops<|call|>", "oops", []),
        ("no marks <| at all <", "no marks <| at all <", []),
    ],
}  # fmt: skip
FLAT = [(name, *case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "text", "content", "calls"), FLAT, ids=lambda v: str(v)[:25])
def test_whole(name, text, content, calls):
    assert parse_tool_calls(name, text) == (content, calls)


def test_content_is_shown_before_the_call_is_whole():
    parser = tool_parser("hermes")
    assert parser.push("Let me look <") == ["Let me look"]
    assert parser.push("tool_call>{") == []
    assert parser.push('"name": "g"}</tool_call>') == [G]


def test_calls_come_as_soon_as_they_are_whole():
    parser = tool_parser("llama")
    assert parser.push('{"name": "g", "parameters": {}') == []
    assert parser.push("}") == [G]


@pytest.mark.parametrize(
    ("template", "model_type", "expected"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "qwen2", "hermes"),
        ("... [TOOL_CALLS] ...", "mistral", "mistral"),
        ("<tool_call>\n<function=f>\n<parameter=p>", "qwen3_moe", "qwen_coder"),
        ("<seed:tool_call>\n<function=f>\n<parameter=p>", "seed_oss", "seed"),
        ("<|start_header_id|> <|python_tag|>", "llama", "llama"),
        ('<|start_header_id|> {"name": ..., "parameters": ...}', "llama", "llama"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3", "deepseek"),
        ("<|channel|>", "gpt_oss", "harmony"),
        ("<start_of_turn>", "gemma3_text", "pythonic"),
        ("<|im_start|>", "llama", "hermes"),
        (None, "", "hermes"),
    ],
)
def test_format_is_chosen_by_template_then_family(template, model_type, expected):
    assert tool_format_of(template, model_type) == expected


def test_only_marks_that_are_plain_text_survive_skipping_special_tokens():
    assert [name for name in get_args(ToolFormat) if needs_special_tokens(name)] == [
        "seed", "llama", "mistral", "deepseek", "harmony",
    ]  # fmt: skip
