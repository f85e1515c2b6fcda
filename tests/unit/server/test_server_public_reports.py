"""Reports of users from the trackers of other servers, each tried as it was reported; tests name the thread."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from serverkit import Served, eventually

CHAT: dict[str, Any] = {"model": "script", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
ENDPOINTS = {
    "/v1/chat/completions": '{"model": "script", "messages": [{"role": "user", "content": "%s"}]}',
    "/v1/completions": '{"model": "script", "prompt": "%s"}',
    "/v1/responses": '{"model": "script", "input": "%s"}',
    "/v1/messages": '{"model": "script", "max_tokens": 4, "messages": [{"role": "user", "content": "%s"}]}',
    "/tokenize": '{"model": "script", "prompt": "%s"}',
}


def post(served: Served, path: str, body: Any, status: int = 200) -> dict[str, Any]:
    """The JSON of an answer with that status; `body` may be text, which is sent as it is."""
    content = body if isinstance(body, str) else json.dumps(body)
    with served.client() as client:
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stream(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that ends as it should."""
    with served.client() as client:
        lines = client.post(path, json=body | {"stream": True}).text.splitlines()
    data = [line[6:] for line in lines if line.startswith("data: ")]
    if data[-1] == "[DONE]":
        data.pop()
    return [json.loads(line) for line in data]


def test_errors_lie_under_error(served: Served) -> None:
    """vllm#12886: the fields of an error lay at the top level, where OpenAI's clients don't look."""
    found = post(served, "/v1/chat/completions", CHAT | {"max_tokens": 100_000}, 400)
    assert list(found) == ["error"]
    assert found["error"]["code"] == "context_length_exceeded"
    assert "1000" in found["error"]["message"]
    assert found["error"]["type"] == "invalid_request_error"


def test_errors_of_messages_all_have_one_shape(served: Served) -> None:
    """vllm#57997: validation errors of /v1/messages came in OpenAI's shape, with a Python repr in the text."""
    good = {"model": "script", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    for body in (good | {"max_tokens": "x"}, good | {"messages": "x"}, good | {"messages": image}, "{bad", "[]"):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            if path.endswith("count_tokens") and isinstance(body, dict) and body["max_tokens"] == "x":
                continue
            found = post(served, path, body, 400)
            assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
            assert not {"<class", "Expected `", "str`", "{'"} & set(found["error"]["message"].split())
    assert post(served, "/v1/messages", good | {"model": "no"}, 404)["error"]["type"] == "not_found_error"


def test_logprobs_without_top_logprobs(served: Served) -> None:
    """vllm#4795: `logprobs: true` alone was an error; OpenAI gives the chosen tokens and no alternatives."""
    choice = post(served, "/v1/chat/completions", CHAT | {"logprobs": True})["choices"][0]
    assert "".join(item["token"] for item in choice["logprobs"]["content"][:5]) == "Hello"
    assert all(item["top_logprobs"] == [] for item in choice["logprobs"]["content"])


def test_no_alternatives_of_no_logprobs(served: Served) -> None:
    """lmdeploy#4121: `top_logprobs: 0` with `logprobs: false`, the defaults spelt out, was a bad request."""
    for logprobs in ({"logprobs": False}, {"logprobs": None}, {}):
        choice = post(served, "/v1/chat/completions", CHAT | logprobs | {"top_logprobs": 0})["choices"][0]
        assert choice["logprobs"] is None


def test_tokens_that_are_parts_of_a_character_have_names_of_their_own(served: Served) -> None:
    """vllm#6626, vllm#9463: they were all U+FFFD or empty, so that alternatives could not be told apart."""
    served.engine.answer = "a天"
    asked = {"model": "script", "prompt": "Hi", "max_tokens": 9}
    found = post(served, "/v1/completions", asked | {"logprobs": 2})["choices"][0]["logprobs"]
    assert found["tokens"] == ["a", "bytes:\\xe5", "bytes:\\xa4", "bytes:\\xa9"]
    assert all(token in top for token, top in zip(found["tokens"], found["top_logprobs"], strict=True))
    chat = post(served, "/v1/chat/completions", CHAT | {"logprobs": True})["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(item["bytes"]) for item in chat) == "a天".encode()


def test_an_unusable_schema_is_refused_and_the_server_goes_on(served: Served) -> None:
    """vllm#17248: a schema that the grammar compiler cannot read ended the engine for everybody."""
    cases: list[tuple[dict[str, Any], str | None, str]] = [
        ({"type": "strin"}, ".type", "'strin' is not accepted; expected one of array, boolean"),
        ({"properties": []}, ".properties", "expected an object of schemas"),
        ({"$ref": "#/$defs/No"}, ".$ref", "expected another value: it points to nothing"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, None, "minItems (3) is greater than maxItems (1)"),
    ]
    for schema, path, says in cases:
        asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        error = post(served, "/v1/chat/completions", CHAT | {"response_format": asked}, 400)["error"]
        whole = "response_format"
        assert error["param"] == (whole if path is None else f"{whole}.json_schema.schema{path}")
        assert says in error["message"]
        assert "expected expected" not in error["message"]
    assert post(served, "/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]


def test_ranges_of_characters_beyond_ascii(served: Served) -> None:
    """vllm#15210: `[\\x00-\\u2e7f]+` did not parse; vllm#8805: choices came back as \\u escapes."""
    post(served, "/v1/chat/completions", CHAT | {"guided_regex": "[\x00-\u2e7f]+"})
    guided = served.engine.seen[-1][1].guided
    assert guided is not None
    assert served.engine.admits(guided, "Grüße\n")
    assert not served.engine.admits(guided, "公司")
    post(served, "/v1/chat/completions", CHAT | {"guided_choice": ["公司上市", "公司"]})
    guided = served.engine.seen[-1][1].guided
    assert guided is not None
    assert [served.engine.admits(guided, text) for text in ("公司", "公司上市", "\\u516c")] == [True, True, False]


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", '"NaN"', "1e999", "-1"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty"])
def test_numbers_that_are_none(served: Served, field: str, written: str) -> None:
    """sglang#28153: a temperature of NaN ended the scheduler for everybody."""
    if (field, written) == ("frequency_penalty", "-1"):
        return
    body = json.dumps(CHAT)[:-1] + f', "{field}": {written}}}'
    error = post(served, "/v1/chat/completions", body, 400)["error"]
    assert error["param"] == field or error["code"] == "invalid_json"


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(("half", "place"), [("\\ud83d", 0), ("an emoji \\ud83d", 9), ("x \\ude00 y", 2)])
def test_half_an_emoji_is_the_clients_error(served: Served, path: str, half: str, place: int) -> None:
    """colibri#1589: a string cut within an emoji was "engine failed", 500, which clients send again."""
    body = ENDPOINTS[path] % half
    found = post(served, path, body, 400)
    escape = half.strip(" xyanemoji")
    byte = ENDPOINTS[path].index("%s") + place
    assert f"{escape} is half of a surrogate pair (byte {byte})" in found["error"]["message"]
    post(served, path, ENDPOINTS[path] % "\\ud83d\\ude00")


def test_stop_that_is_an_empty_list(served: Served) -> None:
    """openai-node#224: clients send `stop: []` and the highest temperature."""
    post(served, "/v1/chat/completions", CHAT | {"stop": [], "temperature": 2, "top_p": 1})
    assert served.engine.seen[-1][1].stop == ()


def test_turns_with_empty_or_absent_parts(served: Served) -> None:
    """vllm#13978: `tool_calls: []` in a past turn was a 500; mlx-vlm#1785: so was a call without text."""
    asked = {"role": "user", "content": "a"}
    for turn in (
        {"content": "b", "tool_calls": []},
        {"content": None, "tool_calls": [CALL]},
        {"tool_calls": [CALL]},
    ):
        messages = [asked, {"role": "assistant", **turn}]
        if turn["tool_calls"]:
            messages.append({"role": "tool", "tool_call_id": "c1", "content": "sunny"})
        post(served, "/v1/chat/completions", CHAT | {"messages": [*messages, asked]})
        prompt = served.engine.tokenizer.decode(list(served.engine.seen[-1][0]))
        assert ("[weather]" in prompt) == bool(turn["tool_calls"])
        assert "None" not in prompt
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    turns = [asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    post(served, "/v1/messages", {"model": "script", "max_tokens": 4, "messages": turns})
    assert "None" not in served.engine.tokenizer.decode(list(served.engine.seen[-1][0]))


def test_tool_results_in_parts_reach_the_template_as_text(served: Served) -> None:
    """vllm#39899, ninfer#56: the parts were refused, or reached templates that know text only as a list."""
    parts = [{"type": "text", "text": "15 degrees"}, {"type": "text", "text": "sunny"}]
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": parts},
    ]
    post(served, "/v1/chat/completions", CHAT | {"messages": messages, "tools": [WEATHER]})
    prompt = served.engine.tokenizer.decode(list(served.engine.seen[-1][0]))
    assert "15 degrees" in prompt
    assert "sunny" in prompt
    assert "{'type'" not in prompt


def test_choices_that_ask_for_nothing_special(served: Served) -> None:
    """lmstudio#307: `response_format: text` was refused; aphrodite#1143: so was `tool_choice: auto` without tools;
    mlx-vlm#1070: with `none`, calls were parsed all the same.
    """
    post(served, "/v1/chat/completions", CHAT | {"response_format": {"type": "text"}})
    assert served.engine.seen[-1][1].guided is None
    for choice in ("auto", "none"):
        for tools in ({}, {"tools": []}, {"tools": None}):
            post(served, "/v1/chat/completions", CHAT | {"tool_choice": choice} | tools)
    served.engine.answer = '<tool_call>{"name": "weather", "arguments": {"city": "A"}}</tool_call>'
    asked = CHAT | {"tools": [WEATHER], "tool_choice": "none", "max_tokens": 200}
    choice = post(served, "/v1/chat/completions", asked)["choices"][0]
    assert choice["message"]["content"] == served.engine.answer
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("stop", None)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_the_limit_cuts_off(served: Served, choice: Any) -> None:
    """vllm#53269, vllm#47903, vllm#37937: a call cut off by `max_tokens` ended with "tool_calls", or broke the
    stream, or left its notation in the content; with and without streaming.
    """
    arguments = '{"city": "Oslo"}'
    served.engine.answer = (
        arguments if choice != "required" else f'[{{"name": "weather", "arguments": {arguments}}}]'
    )
    whole = len(served.engine.answer)
    for limit in range(1, whole + 1):
        asked = CHAT | {"tools": [WEATHER], "tool_choice": choice, "max_tokens": limit}
        answer = post(served, "/v1/chat/completions", asked)["choices"][0]
        pieces = [event["choices"][0] for event in stream(served, "/v1/chat/completions", asked)]
        assert not answer["message"]["content"]
        assert not any(piece["delta"].get("content") for piece in pieces)
        ends = "tool_calls" if limit == whole else "length"
        assert (answer["finish_reason"], pieces[-1]["finish_reason"]) == (ends, ends)
        calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]
        streamed = "".join(call["function"].get("arguments", "") for call in calls)
        told = answer["message"].get("tool_calls") or []
        assert "".join(call["function"]["arguments"] for call in told) == streamed
        assert arguments.startswith(streamed)


def test_parallel_calls_switched_off(served: Served) -> None:
    """sglang#9696: `parallel_tool_calls: false` still gave several calls."""
    two = '[{"name": "weather", "arguments": {"city": "A"}},{"name": "weather", "arguments": {"city": "B"}}]'
    for allowed in (True, False):
        body = CHAT | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": allowed}
        post(served, "/v1/chat/completions", body)
        guided = served.engine.seen[-1][1].guided
        assert guided is not None
        assert served.engine.admits(guided, two) is allowed


def test_every_choice_of_a_stream_opens_with_its_role_and_once(served: Served) -> None:
    """tensorzero#1265, dynamo#12639: no role, or one in every chunk; tgi#1648: the index counted tokens."""
    events = stream(served, "/v1/chat/completions", CHAT | {"n": 2})
    for index in (0, 1):
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"][0]["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert not any("role" in delta for delta in deltas[1:])
    assert {event["choices"][0]["index"] for event in events} == {0, 1}


def test_usage_comes_where_it_was_asked_for(served: Served) -> None:
    """vllm#7262: usage in every chunk though only the last was asked for; smg#2555: the wish for it ignored."""
    once = stream(served, "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}})
    assert [event["usage"] is not None for event in once] == [False] * (len(once) - 1) + [True]
    options = {"include_usage": True, "continuous_usage_stats": True}
    always = stream(served, "/v1/chat/completions", CHAT | {"stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in always]
    assert counts == sorted(counts)
    assert counts[-1] == once[-1]["usage"]["completion_tokens"]
    error = post(served, "/v1/chat/completions", CHAT | {"stream_options": options}, 400)["error"]
    assert error["message"] == "stream_options needs stream=true"


def test_events_of_responses_are_numbered_without_gaps(served: Served) -> None:
    """litellm#28899, llama.cpp#24957: sequence numbers were absent or started again."""
    events = stream(served, "/v1/responses", {"model": "script", "input": "Hi"})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_tokens_of_a_conversation_with_and_without_the_next_turn(served: Served) -> None:
    """ray#61687: `add_generation_prompt: false` was ignored; vllm#18185: so were tools."""
    ask = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
    text = {}
    for add in (True, False):
        tokens = post(served, "/tokenize", ask | {"add_generation_prompt": add})["tokens"]
        text[add] = served.engine.tokenizer.decode(tokens)
    assert text[True] == text[False] + "<assistant>"
    assert post(served, "/tokenize", ask | {"tools": [WEATHER]})["count"] > len(text[True])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_frees_its_slot_and_is_counted(served: Served, streamed: bool) -> None:
    """llama.cpp#11720, atom#1562: generation went on for nobody."""
    served.engine.answer, served.engine.pause = "x" * 900, 0.01
    host, port = served.url.removeprefix("http://").split(":")
    body = json.dumps(CHAT | {"max_tokens": 900, "stream": streamed}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually(lambda: bool(served.engine.live), "the engine works")
    eventually(lambda: not served.engine.live, "the request is aborted", 2)


def test_a_browsers_preflight_needs_no_key(serve: Callable[..., Served]) -> None:
    """aphrodite#434: OPTIONS was answered 401, so no page could call a server with keys."""
    served = serve(cors_origins=("https://app.example",), api_key="k")
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type"
    with served.client() as client:
        for path in ("/v1/chat/completions", "/v1/models", "/v1/responses", "/v1/messages"):
            answer = client.options(path, headers=asks)
            assert answer.status_code == 200
            allowed = answer.headers["access-control-allow-headers"].lower()
            assert "authorization" in allowed
            assert "content-type" in allowed
