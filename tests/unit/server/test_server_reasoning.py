"""Reasoning, apart from content and calls, in whole answers and in streams (llama.cpp#13867)."""

import json
from typing import Any

import httpx
import pytest
import tokenizers
from serverkit import ScriptEngine, Served
from tokenizers import AddedToken

from shoal.engine.text.convert import ConvertedTokenizer, TokenizerMeta
from shoal.engine.text.tokenizer import Tokenizer
from shoal.server.required_reader import RequiredReader

ASK = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}"
SHOWN = "{% for m in messages %}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{% endfor %}"
TEMPLATES = {
    "think": PLAIN + SHOWN + "{# </think> #}<assistant>",
    "opened": PLAIN + "<assistant><think>\n",
    "magistral": PLAIN + "{# [THINK] #}",
    "harmony": PLAIN + "{# <|channel|> #}",
    "none": PLAIN,
}


def tokenizer_with(engine: ScriptEngine, template: str, *marks: str, special: bool = False) -> Tokenizer:
    """The script's tokenizer with a template of its own, and marks that are tokens."""
    inner = tokenizers.Tokenizer.from_str(engine.tokenizer.json)
    inner.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    meta = TokenizerMeta({"default": template}, {"eos_token": "<eos>"}, None, (256,))
    return Tokenizer(ConvertedTokenizer(inner.to_str(), meta))


@pytest.fixture
def reasoning(served: Served, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the template and the answer of the script's model."""

    def script(template: str, answer: str, *marks: str, special: bool = False) -> Served:
        tokenizer = tokenizer_with(served.engine, TEMPLATES[template], *marks, special=special)
        monkeypatch.setattr(served.engine, "tokenizer", tokenizer)
        served.engine.answer = answer
        return served

    return script


def ask(served: Served, **extra: Any) -> dict[str, Any]:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={**ASK, **extra})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(served: Served, **extra: Any) -> dict[str, Any]:
    """The message that a stream's deltas add up to, and the order in which kinds of text came."""
    with served.client() as client:
        response: httpx.Response = client.post("/v1/chat/completions", json={**ASK, **extra, "stream": True})
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "calls": []}
    for line in response.text.split("\n"):
        if line.startswith("data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"]
            for key in ("content", "reasoning_content", "reasoning"):
                message[key] += delta.get(key) or ""
            message["calls"] += [c["function"]["name"] for c in delta.get("tool_calls", ())]
    return message


CASES = [
    ("think", "<think>\nHm, a.\n\nb\n</think>\n\nYes.", "Hm, a.\n\nb", "Yes."),
    ("think", "\n<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("think", "Yes <think>no</think>.", "", "Yes <think>no</think>."),
    ("think", "<thin air>", "", "<thin air>"),
    ("think", "<think>cut o", "cut o", ""),
    ("opened", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("opened", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("opened", "Hm", "Hm", ""),
    ("magistral", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Hm.",
        "Yes.",
    ),
    ("none", "<think>Hm.</think>Yes.", "", "<think>Hm.</think>Yes."),
]


@pytest.mark.parametrize(("template", "answer", "thought", "said"), CASES)
def test_reasoning_is_a_field_of_its_own(
    reasoning: Any, template: str, answer: str, thought: str, said: str
) -> None:
    served = reasoning(template, answer)
    message = ask(served)["choices"][0]["message"]
    assert message["content"] == said
    assert message.get("reasoning_content") == message.get("reasoning") == (thought or None)
    for tools in ({}, {"tools": [TOOL]}):
        stream = streamed(served, **tools)
        assert (stream["content"], stream["reasoning_content"]) == (said, thought)
        assert stream["reasoning"] == thought


@pytest.mark.parametrize("template", ["think", "none"])
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_calls_inside_reasoning_are_not_executed(reasoning: Any, template: str, mode: str) -> None:
    """lmstudio#1592; also where reasoning stays in the content, and for models that aren't known to reason."""
    served = reasoning(template, f"<think>I could {CALL}, no.</think>\n{CALL}")
    served.engine.reasoning = mode
    choice = ask(served, tools=[TOOL])["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"
    kept = f"<think>I could {CALL}, no.</think>"
    if (template, mode) == ("think", "auto"):
        assert choice["message"]["reasoning"] == f"I could {CALL}, no."
        assert choice["message"]["content"] is None
    else:
        assert "reasoning" not in choice["message"]
        assert choice["message"]["content"] == kept
    assert len(streamed(served, tools=[TOOL])["calls"]) == 1


def test_reasoning_can_be_left_out_or_left_in(reasoning: Any) -> None:
    served = reasoning("think", "<think>\nHm.\n</think>\n\nYes.")
    message = ask(served, include_reasoning=False)["choices"][0]["message"]
    assert message["content"] == "Yes."
    assert "reasoning_content" not in message
    served.engine.reasoning = "none"
    assert ask(served)["choices"][0]["message"]["content"] == served.engine.answer
    assert streamed(served)["content"] == served.engine.answer


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
@pytest.mark.parametrize("template", ["opened", "think", "harmony"])
def test_a_guided_answer_has_no_reasoning(reasoning: Any, template: str, extra: dict[str, Any]) -> None:
    answer = '{"a": "<think>x</think><|channel|>analysis<|message|>"}'
    message = ask(reasoning(template, answer), **extra)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert (message["content"] or message["tool_calls"][0]["function"]["arguments"]) == answer


def test_required_calls_have_no_reasoning(reasoning: Any) -> None:
    served = reasoning("opened", '[{"name": "f", "arguments": {"a": "</think>"}}]')
    message = ask(served, tools=[TOOL], tool_choice="required")["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "</think>"}'}
    assert "reasoning_content" not in message


def test_reasoning_tokens_are_counted(reasoning: Any) -> None:
    served = reasoning("think", "<think>abc</think>Yes.", "<think>", "</think>")
    usage = ask(served)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert usage["completion_tokens"] == 1 + 3 + 1 + 4
    served = reasoning("opened", "abc</think>Yes.", "<think>", "</think>")
    assert ask(served)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_reasoning_tokens_of_channels_are_counted(reasoning: Any) -> None:
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    answer = (
        "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>de<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    served = reasoning("harmony", answer, *marks)
    found = ask(served)
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert found["choices"][0]["message"]["content"] == "I look.Yes."


def test_special_marks_are_not_skipped(reasoning: Any) -> None:
    served = reasoning("magistral", "[THINK]a[/THINK]Yes.", "[THINK]", "[/THINK]", special=True)
    ask(served)
    assert served.engine.seen[-1][1].skip_special_tokens is False


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_turns_reaches_the_template(reasoning: Any, field: str) -> None:
    served = reasoning("think", "Yes.")
    messages = [*ASK["messages"], {"role": "assistant", "content": "a", field: "Hm."}]
    ask(served, messages=messages)
    assert "(Hm.)" in served.engine.tokenizer.decode(served.engine.seen[-1][0])


def test_prefilled_reasoning_goes_on(reasoning: Any) -> None:
    served = reasoning("think", "two</think>Yes.")
    messages = [*ASK["messages"], {"role": "assistant", "content": "<think>One,"}]
    message = ask(served, messages=messages, continue_final_message=True)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("two", "Yes.")


def test_a_resumed_stream_is_still_inside(reasoning: Any) -> None:
    served = reasoning("think", " more</think>Yes.")
    resumed = served.engine.tokenizer.encode("<think>Hm")
    stream = streamed(served, resume_token_ids=resumed)
    assert (stream["reasoning_content"], stream["content"]) == (" more", "Yes.")


def _fed(text: str, size: int) -> tuple[list[list[Any]], list[str]]:
    """Calls, each as name and pieces of arguments, and contents, of a text fed `size` characters at a time."""
    reader = RequiredReader()
    deltas = [d for at in range(0, len(text), size) for d in reader.feed(text[at : at + size])]
    calls: list[list[Any]] = []
    for delta in [*deltas, *reader.close()]:
        for call in delta.tool_calls or ():
            if isinstance(call.function.name, str):
                calls.append([call.function.name])
            if call.function.arguments:
                calls[call.index].append(call.function.arguments)
    contents = [d.content for d in deltas if isinstance(d.content, str)]
    return calls, contents


REQUIRED = '[ {"name": "f\\u0041", "arguments": {"a": "}]\\"", "b": [1.10]}} , {"name":"g","arguments":{}}]'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_required_calls_are_streamed_as_they_come(size: int) -> None:
    calls, contents = _fed(REQUIRED, size)
    assert [[name, "".join(pieces)] for name, *pieces in calls] == [
        ["fA", '{"a": "}]\\"", "b": [1.10]}'],
        ["g", "{}"],
    ]
    assert not contents
    assert size > 2 or len(calls[0]) > 10


def test_required_calls_cut_off_anywhere() -> None:
    """What was begun is handed out as far as it goes; the rest is dropped, and is no content."""
    first, second = '{"a": "}]\\"", "b": [1.10]}', "{}"
    whole = (REQUIRED.index(first), REQUIRED.rindex(second))
    for length in range(1, len(REQUIRED)):
        calls, contents = _fed(REQUIRED[:length], 3)
        expected = [a[: max(0, length - at)] for a, at in zip((first, second), whole, strict=True)]
        assert ["".join(pieces) for _, *pieces in calls] == expected[: len(calls)]
        assert len(calls) == (length > whole[0]) + (length > whole[1])
        assert not contents or not calls


def test_other_apis_have_reasoning_in_items_of_their_own(reasoning: Any) -> None:
    served = reasoning("opened", "Hm.\n</think>\n\nYes.", "<think>", "</think>")
    with served.client() as client:
        response = client.post("/v1/responses", json={"model": "script", "input": "Hi"}).json()
        thinking = {"type": "enabled", "budget_tokens": 1024}
        asked = {"model": "script", "max_tokens": 500, "messages": ASK["messages"], "thinking": thinking}
        message = client.post("/v1/messages", json=asked).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "Hm."
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][1]["text"] == "Yes."
