"""The official client, unchanged, against the real model: chat, stream, tools, log-probabilities, schema, abort."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from e2ekit import Running, eventually
from openai import BadRequestError, NotFoundError, OpenAI

pytestmark = pytest.mark.realmodel

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def openai(smollm2: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


def test_chat(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 30
    again = openai.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=30)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    # The same prompt again: all its full blocks are found.
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= 16


def test_stream_says_what_the_whole_answer_says(openai: OpenAI) -> None:
    wanted: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Write a line with an emoji about the sea — in 日本語."}],
        "temperature": 0.9,
        "seed": 11,
        "max_tokens": 40,
    }
    whole = openai.chat.completions.create(**wanted)
    pieces, finish, usage = [], None, None
    for chunk in openai.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert len(pieces) > 5
    assert "".join(pieces) == whole.choices[0].message.content
    assert finish == whole.choices[0].finish_reason
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(openai: OpenAI, choice: Any, stream: bool) -> None:
    wanted: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "How is the weather in Paris, in Celsius?"}],
        "tools": [WEATHER],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 80,
    }
    if stream:
        name = arguments = ""
        for chunk in openai.chat.completions.create(**wanted, stream=True):
            for call in chunk.choices[0].delta.tool_calls or ():
                name += (call.function.name if call.function else "") or ""
                arguments += (call.function.arguments if call.function else "") or ""
    else:
        answer = openai.chat.completions.create(**wanted)
        assert answer.choices[0].finish_reason == "tool_calls"
        calls = answer.choices[0].message.tool_calls or []
        assert len(calls) == 1
        assert calls[0].type == "function"
        name, arguments = calls[0].function.name, calls[0].function.arguments
    assert name == "get_weather"
    found = json.loads(arguments)
    assert set(found) == {"city", "unit"}
    assert found["unit"] in ("C", "F")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_when_the_model_decides(openai: OpenAI, stream: bool) -> None:
    wanted: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "How is the weather in Paris, in Celsius?"}],
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 80,
    }
    if stream:
        content, names = "", []
        for chunk in openai.chat.completions.create(**wanted, stream=True):
            content += chunk.choices[0].delta.content or ""
            names += [c.function.name for c in chunk.choices[0].delta.tool_calls or () if c.function]
    else:
        choice = openai.chat.completions.create(**wanted).choices[0]
        content = choice.message.content or ""
        names = [c.function.name for c in choice.message.tool_calls or () if c.type == "function"]
        assert (choice.finish_reason == "tool_calls") == bool(names)
    # A model this small may call or talk; what it says is never swallowed.
    assert content or names


def test_a_tool_round_trip(openai: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    wanted: Any = {"model": "smollm2", "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    first = openai.chat.completions.create(**wanted, messages=messages, tool_choice="required")
    message = first.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees and sunny"}
    messages += [message, result]
    second = openai.chat.completions.create(**wanted, messages=messages, tool_choice="none")
    assert second.choices[0].message.content


def test_logprobs(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=4
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    entries = logprobs.content or []
    spoken = b"".join(bytes(entry.bytes or ()) for entry in entries).decode(errors="ignore")
    assert (answer.choices[0].message.content or "") in spoken
    for entry in entries:
        assert len(entry.top_logprobs) == 4
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        # Greedy: what was chosen is what is most likely.
        assert entry.top_logprobs[0].token == entry.token
        assert sum(math.exp(v) for v in values) <= 1 + 1e-4


def test_completion_scores_of_an_echoed_prompt(openai: OpenAI) -> None:
    text = "The quick brown fox jumps over the lazy dog"
    answer = openai.completions.create(
        model="smollm2", prompt=text, echo=True, logprobs=2, max_tokens=0, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text == text
    assert choice.logprobs is not None
    values = choice.logprobs.token_logprobs or []
    assert values[0] is None
    # The end of this sentence is known by heart; a shifted row would not be.
    assert values[-1] is not None
    assert values[-1] > -1


def test_json_schema(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Give me a person."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": schema, "strict": True},
        },
        max_tokens=100,
        temperature=0.8,
        seed=3,
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert set(found) == {"name", "age"}
    assert isinstance(found["age"], int)


@pytest.mark.parametrize(
    ("extra", "matches"),
    [
        ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"guided_regex": "[0-9]{3}-[0-9]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, lambda text: text in ("red", "blue")),
    ],
)
def test_other_constraints(openai: OpenAI, extra: dict[str, Any], matches: Any) -> None:
    answer = openai.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=20, extra_body=extra)
    assert matches(answer.choices[0].message.content)


def test_an_aborted_stream_frees_its_blocks(openai: OpenAI, smollm2: Running) -> None:
    stream = openai.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Count from one to one thousand."}],
        stream=True,
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    assert smollm2.replica.engine is not None
    assert smollm2.replica.engine.stats().kv_used_blocks > 0
    stream.close()
    eventually(smollm2.idle, "the blocks are free")
    assert openai.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=3).choices


def test_stop_string_and_n(openai: OpenAI) -> None:
    answer = openai.completions.create(
        model="smollm2", prompt="1, 2, 3, 4,", stop=[" 7"], n=2, temperature=0, max_tokens=20
    )
    assert [choice.text for choice in answer.choices] == [" 5, 6,"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2


def test_errors_are_the_clients_own(openai: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="smollm2"):
        openai.chat.completions.create(model="gpt-9", messages=QUESTION)
    with pytest.raises(BadRequestError, match="2048") as caught:
        openai.completions.create(model="smollm2", prompt="word " * 5000)
    assert caught.value.code == "context_length_exceeded"
    for field, value in (("top_k", 10**9), ("logit_bias", {"99999999": 1}), ("stop_token_ids", [99999999])):
        with pytest.raises(BadRequestError) as caught:
            openai.chat.completions.create(model="smollm2", messages=QUESTION, extra_body={field: value})
        assert caught.value.param == field
    for extra in ({"guided_regex": "("}, {"guided_json": {"type": "nonsense"}}, {"guided_grammar": "start: ???"}):
        with pytest.raises(BadRequestError) as caught:
            openai.chat.completions.create(model="smollm2", messages=QUESTION, extra_body=extra)
        assert str(caught.value.param).split(".")[0] in extra
