"""`/v1/chat/completions`: shapes of answers and streams."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from serverkit import Served, byte_tokenizer

from shoal.engine.sampling.defaults import SamplingDefaults

ASK = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def openai(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_whole_answer(openai: OpenAI, served: Served) -> None:
    answer = openai.chat.completions.create(**ASK)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hello, wörld!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    prompt, params = served.engine.seen[0]
    assert bytes_of(served, prompt) == "<user>Hi\n<assistant>"
    assert params.max_tokens is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("Hello, wörld!".encode())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def bytes_of(served: Served, tokens: tuple[int, ...]) -> str:
    return str(served.engine.tokenizer.decode(tokens))


def test_stream_is_role_then_text_then_end_then_usage(served: Served) -> None:
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    with served.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == "Hello, wörld!"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14


def test_stream_without_options_has_no_usage(served: Served) -> None:
    with served.client() as client:
        chunks = events(client.post("/v1/chat/completions", json={**ASK, "stream": True}))
    assert not any("usage" in chunk for chunk in chunks)


def test_stream_of_n_choices(openai: OpenAI) -> None:
    texts = ["", ""]
    roles = [0, 0]
    for chunk in openai.chat.completions.create(**ASK, n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
    assert texts == ["Hello, wörld!"] * 2
    assert roles == [1, 1]


def test_length_ends_with_length(openai: OpenAI) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        answer = openai.chat.completions.create(**ASK, **{field: 3})
        assert answer.choices[0].message.content == "Hel"
        assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(openai: OpenAI, stream: bool) -> None:
    wanted = {**ASK, "logprobs": True, "top_logprobs": 2, "max_tokens": 9}
    if stream:
        entries = []
        for chunk in openai.chat.completions.create(**wanted, stream=True):
            logprobs = chunk.choices[0].logprobs
            entries += (logprobs.content or []) if logprobs else []
    else:
        logprobs = openai.chat.completions.create(**wanted).choices[0].logprobs
        assert logprobs is not None
        entries = logprobs.content or []
    assert [e.token for e in entries[:4]] == ["H", "e", "l", "l"]
    # The last token is the first half of ö: its bytes say so, its text can't.
    assert entries[8].bytes == ["ö".encode()[0]]
    assert entries[8].token == "\ufffd"
    assert entries[0].logprob == -0.25
    assert [t.token for t in entries[0].top_logprobs] == [chr_of(65), chr_of(66)]
    assert entries[0].top_logprobs[1].logprob == -9999.0


def chr_of(token: int) -> str:
    return str(byte_tokenizer().token_text(token))


def test_tools_reach_the_template_and_tool_choice_none_hides_them(openai: OpenAI, served: Served) -> None:
    openai.chat.completions.create(**ASK, tools=[TOOL], tool_choice="auto")
    openai.chat.completions.create(**ASK, tools=[TOOL], tool_choice="none")
    shown, hidden = (bytes_of(served, prompt) for prompt, _ in served.engine.seen)
    assert '"name": "weather"' in shown
    assert "weather" not in hidden


def test_named_tool_streams_its_arguments(openai: OpenAI, served: Served) -> None:
    served.engine.answer = '{"city": "Köln"}'
    choice = {"type": "function", "function": {"name": "weather"}}
    arguments, names, finish = "", [], None
    for chunk in openai.chat.completions.create(**ASK, tools=[TOOL], tool_choice=choice, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
    assert (names, json.loads(arguments), finish) == (["weather"], {"city": "Köln"}, "tool_calls")
    guided = served.engine.seen[0][1].guided
    assert guided is not None
    assert json.loads(guided.value) == {**TOOL["function"]["parameters"], "additionalProperties": False}


@pytest.mark.parametrize("stream", [False, True])
def test_required_tool(openai: OpenAI, served: Served, stream: bool) -> None:
    served.engine.answer = '[{"name": "weather", "arguments": {"city":"A"}},{"name":"weather","arguments":{}}]'
    if stream:
        names, arguments = [], ["", ""]
        for chunk in openai.chat.completions.create(**ASK, tools=[TOOL], tool_choice="required", stream=True):
            assert not chunk.choices[0].delta.content
            for call in chunk.choices[0].delta.tool_calls or ():
                names += [call.function.name] if call.function.name else []
                arguments[call.index] += call.function.arguments
        calls = list(zip(names, arguments, strict=True))
    else:
        answer = openai.chat.completions.create(**ASK, tools=[TOOL], tool_choice="required")
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        found = answer.choices[0].message.tool_calls or []
        assert len({call.id for call in found}) == 2
        calls = [(c.function.name, c.function.arguments) for c in found]
    assert calls == [("weather", '{"city":"A"}'), ("weather", "{}")]


def test_conversation_with_tool_results_and_parts(openai: OpenAI, served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    openai.chat.completions.create(model="script", messages=messages)
    text = bytes_of(served, served.engine.seen[0][0])
    assert text == "<system>Be brief.\n<user>A\nB\n<assistant>[weather]\n<tool>sunny\n<assistant>"


def test_an_answer_can_be_sent_back_as_the_client_dumps_it(openai: OpenAI, served: Served) -> None:
    first = openai.chat.completions.create(**ASK).choices[0].message
    for dumped in (first.model_dump(), first.model_dump(exclude_none=True), first):
        openai.chat.completions.create(model="script", messages=[*ASK["messages"], dumped])
    assert "<assistant>Hello, wörld!\n" in bytes_of(served, served.engine.seen[-1][0])


def test_final_message_is_continued(served: Served) -> None:
    messages = [*ASK["messages"], {"role": "assistant", "content": "Once upon "}]
    body = {"model": "script", "messages": messages, "continue_final_message": True}
    with served.client() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert bytes_of(served, served.engine.seen[0][0]) == "<user>Hi\n<assistant>Once upon "


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("<", "<"),  # transformers#40732: it became "<<"
        ("end", "end"),
        ("a\n\n", "a\n\n"),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": " b "}], "a\n b "),
    ],
)
def test_any_final_message_is_continued_as_it_is(served: Served, content: Any, prompt: str) -> None:
    """transformers#34253, #36404: what the template writes itself, trailing white space, parts, nothing."""
    messages = [*ASK["messages"], {"role": "assistant", "content": content}]
    body = {"model": "script", "messages": messages, "continue_final_message": True}
    with served.client() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.post("/tokenize", json=body).json()["count"] == len("<user>Hi\n<assistant>" + prompt)
    assert bytes_of(served, served.engine.seen[0][0]) == "<user>Hi\n<assistant>" + prompt


def test_return_token_ids_and_prompt_logprobs(served: Served) -> None:
    body = {**ASK, "return_token_ids": True, "prompt_logprobs": 1, "max_tokens": 2}
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
    prompt = list(served.engine.seen[0][0])
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == served.engine.tokenizer.encode("He")
    assert answer["prompt_logprobs"][0] is None
    assert answer["prompt_logprobs"][1][str(prompt[1])]["logprob"] == -0.5


def test_parameters_reach_the_engine(served: Served) -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "seed": 9,
        "stop": "x",
        "stop_token_ids": [5],
        "min_tokens": 2,
        "max_tokens": 5,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logit_bias": {"5": -3},
    }
    ignored = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "reasoning_effort": "low",
        "modalities": ["text"],
    }
    with served.client() as client:
        assert client.post("/v1/chat/completions", json={**ASK, **given, **ignored}).status_code == 200
    params = served.engine.seen[0][1]
    changed = {"stop": ("x",), "stop_token_ids": (5,), "logit_bias": {5: -3.0}}
    for field, value in {**given, **changed}.items():
        assert getattr(params, field) == value, field


@pytest.mark.parametrize(
    ("extra", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}},
            "json_schema",
            {"type": "null"},
        ),
        ({"guided_json": {"type": "null"}}, "json_schema", {"type": "null"}),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"]),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", {"type": "null"}),
    ],
)
def test_constraints_reach_the_engine(served: Served, extra: dict[str, Any], kind: str, value: Any) -> None:
    with served.client() as client:
        assert client.post("/v1/chat/completions", json={**ASK, **extra}).status_code == 200
    guided = served.engine.seen[0][1].guided
    assert guided is not None
    assert guided.kind == kind
    if value is not None:
        assert json.loads(guided.value) == value


def test_every_null_means_the_default(served: Served) -> None:
    from shoal.server.protocol import ChatRequest

    nulls = {name: None for name in ChatRequest.__struct_fields__ if name not in ASK}
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={**ASK, **nulls})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("stream", [False, True])
def test_calls_in_the_models_own_notation(openai: OpenAI, served: Served, stream: bool) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
    served.engine.answer = f"Let me see.\n{call}\n{call}"
    calls: list[tuple[str, str]] = []
    if stream:
        content, finish = "", None
        for chunk in openai.chat.completions.create(**ASK, tools=[TOOL], stream=True):
            finish = chunk.choices[0].finish_reason or finish
            content += chunk.choices[0].delta.content or ""
            calls += [(c.function.name, c.function.arguments) for c in chunk.choices[0].delta.tool_calls or ()]
    else:
        choice = openai.chat.completions.create(**ASK, tools=[TOOL]).choices[0]
        content, finish = choice.message.content or "", choice.finish_reason
        calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    assert (content, finish) == ("Let me see.", "tool_calls")
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("weather", {"city": "Köln"})] * 2


def test_one_call_where_parallel_calls_are_off(openai: OpenAI, served: Served) -> None:
    served.engine.answer = (
        '<tool_call>[{"name": "weather", "arguments": {}}, {"name": "weather", "arguments": {}}]</tool_call>'
    )
    answer = openai.chat.completions.create(**ASK, tools=[TOOL], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls or ()) == 1


def test_without_tools_the_notation_is_text(openai: OpenAI, served: Served) -> None:
    served.engine.answer = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    answer = openai.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == served.engine.answer
    assert answer.choices[0].finish_reason == "stop"


def test_the_models_own_defaults_apply_where_the_request_is_silent(served: Served) -> None:
    """vllm#11164."""
    served.engine.sampling_defaults = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, max_new_tokens=7)
    with served.client() as client:
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
        assert client.post("/v1/chat/completions", json={**ASK, "temperature": 0, "top_k": -1}).status_code == 200
        assert client.post("/v1/chat/completions", json={**ASK, "max_tokens": 9}).status_code == 200
        assert client.post("/v1/completions", json={"model": "script", "prompt": "a"}).status_code == 200
    silent, own, limited, completion = (params for _, params in served.engine.seen)
    assert (silent.temperature, silent.top_k, silent.top_p, silent.max_tokens) == (0.6, 20, 0.95, 7)
    assert (own.temperature, own.top_k, own.top_p) == (0, -1, 0.95)
    assert limited.max_tokens == 9
    assert (completion.temperature, completion.max_tokens) == (0.6, 16)


def test_the_models_own_limit_never_refuses_a_long_prompt(served: Served) -> None:
    served.engine.sampling_defaults = SamplingDefaults(max_new_tokens=5000)
    long = {**ASK, "messages": [{"role": "user", "content": "x" * 900}]}
    with served.client() as client:
        assert client.post("/v1/chat/completions", json=long).status_code == 200
    prompt, params = served.engine.seen[0]
    assert params.max_tokens == 1000 - len(prompt)
