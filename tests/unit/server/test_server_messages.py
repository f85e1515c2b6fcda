"""`/v1/messages`: blocks, events and errors as Anthropic's own client reads them, over the script engine."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from serverkit import Served, eventually, named_events, prompt_of

WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HI: Any = [{"role": "user", "content": "Hi"}]
ASK: Any = {"model": "script", "max_tokens": 400, "messages": HI}


@pytest.fixture
def claude(served: Served) -> Iterator[Anthropic]:
    with Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def post(served: Served, **body: Any) -> httpx.Response:
    with served.client() as client:
        return client.post("/v1/messages?beta=true", json={**ASK, **body})


def test_whole_answer(claude: Anthropic, served: Served) -> None:
    answer = claude.messages.create(**ASK, system="Be brief.")
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello, wörld!"}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert prompt_of(served) == "<system>Be brief.\n<user>Hi\n<assistant>"
    # Unlike OpenAI's count, cached tokens are not among the input's.
    assert answer.usage.input_tokens == len(served.engine.seen[0][0]) - 2
    assert answer.usage.cache_read_input_tokens == 2
    assert answer.usage.output_tokens == 14


def test_every_event_of_a_stream(served: Served) -> None:
    found = named_events(post(served, stream=True))
    deltas = [event for event in found if event["type"] == "content_block_delta"]
    assert [event["type"] for event in found] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(event["delta"]["text"] for event in deltas) == "Hello, wörld!"
    start = found[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["cache_read_input_tokens"] == 2
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 14
    assert found[-2]["usage"]["input_tokens"] == start["usage"]["input_tokens"] > 0


def test_the_clients_own_stream_helper(claude: Anthropic) -> None:
    with claude.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Hello, wörld!"
    assert final.content[0].to_dict()["text"] == text
    assert final.usage.output_tokens == 14


def test_reasons_to_stop(claude: Anthropic, served: Served) -> None:
    assert claude.messages.create(**{**ASK, "max_tokens": 3}).stop_reason == "max_tokens"
    served.engine.stop_reason = "\n\nHuman:"
    answer = claude.messages.create(**ASK, stop_sequences=["\n\nHuman:"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "\n\nHuman:")
    assert served.engine.seen[-1][1].stop == ("\n\nHuman:",)


def test_a_limit_above_the_context_is_lowered_to_it(served: Served) -> None:
    """Claude Code asks for 32,000 tokens, whatever the model."""
    served.engine.answer = "x" * 1000
    answer = post(served, max_tokens=32_000).json()
    assert answer["stop_reason"] == "model_context_window_exceeded"
    prompt, params = served.engine.seen[-1]
    assert params.max_tokens == served.engine.max_model_len - len(prompt)


def test_conversation_of_blocks(served: Served) -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "weather",
                    "input": {"city": "Paris"},
                    "caller": {"type": "direct"},
                },
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "18 C"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    assert post(served, messages=conversation, tools=[WEATHER]).status_code == 200
    said = prompt_of(served)
    assert (
        "<user>A\n<assistant>I look.[weather][weather]\n<tool>18 C\n<tool>Error: no such city\n<user>So?\n" in said
    )


def test_a_row_of_one_roles_messages_is_one(served: Served) -> None:
    """As Anthropic's API has it; the templates of Gemma and Mistral refuse a second message of the same role."""
    row = [{"role": "user", "content": "A"}, {"role": "user", "content": [{"type": "text", "text": "B"}]}]
    post(
        served, messages=[*row, {"role": "assistant", "content": "C"}, {"role": "assistant", "content": "D"}, *row]
    )
    assert prompt_of(served) == "<user>A\nB\n<assistant>C\nD\n<user>A\nB\n<assistant>"


def test_a_tools_image_is_replaced_and_ones_own_refused(served: Served) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [image]}]}
    assert post(served, messages=[*HI, call, result]).status_code == 200
    assert "<tool>[image: not shown" in prompt_of(served)
    answer = post(served, messages=[{"role": "user", "content": [image]}])
    assert answer.status_code == 400
    assert "messages[0].content[0].type: 'image' is not accepted" in answer.json()["error"]["message"]


def test_the_line_that_changes_with_every_request_is_left_out(served: Served) -> None:
    """Claude Code's checksum of each request keeps prefixes from the cache (vllm#36829, llama.cpp#20623)."""
    line = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=fa690;"
    post(
        served,
        system=[
            {"type": "text", "text": line},
            {"type": "text", "text": "You are"},
            {"type": "text", "text": "it."},
        ],
    )
    assert prompt_of(served).startswith("<system>You are\n\nit.\n<user>")
    post(served, system=f"{line}\nYou are it.")
    assert prompt_of(served).startswith("<system>You are it.\n<user>")
    post(served, system=line)
    assert prompt_of(served).startswith("<user>")


def test_forced_call_and_the_answer_to_its_result(claude: Anthropic, served: Served) -> None:
    served.engine.answer = '{"city": "Paris", "share": 1.10}'
    first = claude.messages.create(**ASK, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert first.stop_reason == "tool_use"
    call = first.content[0]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Paris", "share": 1.1})
    served.engine.answer = "Mild."
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18 C"}]}
    messages = [*HI, {"role": "assistant", "content": first.content}, result]
    second = claude.messages.create(**{**ASK, "messages": messages}, tools=[WEATHER], tool_choice={"type": "none"})
    assert second.content[0].to_dict()["text"] == "Mild."
    assert "[weather]\n<tool>18 C\n" in prompt_of(served)


def test_arguments_are_kept_as_they_were_written(served: Served) -> None:
    served.engine.answer = '{"share": 1.10, "big": 12345678901234567890123}'
    answer = post(served, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert '"input":{"share": 1.10, "big": 12345678901234567890123}' in answer.text


def test_calls_of_the_model_stream_as_blocks(served: Served, claude: Anthropic) -> None:
    """The model decides: text, then two calls in its family's notation (here Hermes')."""
    served.engine.answer = (
        "Let me see.\n"
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>\n'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    )
    with claude.messages.stream(**ASK, tools=[WEATHER]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert [block.to_dict().get("input") for block in final.content[1:]] == [{"city": "Paris"}, {"city": "Rome"}]
    found = named_events(post(served, tools=[WEATHER], stream=True))
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [block.get("input") for block in starts] == [None, {}, {}]
    whole = post(served, tools=[WEATHER]).json()
    assert [block.get("input") for block in whole["content"]] == [None, {"city": "Paris"}, {"city": "Rome"}]


def test_a_call_cut_off_has_no_input(served: Served) -> None:
    served.engine.answer = '{"city": "Paris"}'
    answer = post(served, max_tokens=5, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}).json()
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {}


def test_one_call_at_most(served: Served) -> None:
    served.engine.answer = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    answer = post(served, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}).json()
    assert answer["content"][0]["input"] == {"city": "Paris"}
    guided = served.engine.seen[-1][1].guided
    assert guided is not None
    assert '"maxItems":1' in guided.value


def test_claude_code_request_is_taken_whole(served: Served) -> None:
    body = {
        "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{**WEATHER, "eager_input_streaming": True}],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "max"},
        "temperature": 1,
        "stream": True,
    }
    assert named_events(post(served, **body))[-1]["type"] == "message_stop"


def test_structured_output(served: Served) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    served.engine.answer = '{"name": "x"}'
    post(served, output_config={"format": {"type": "json_schema", "schema": schema}})
    guided = served.engine.seen[-1][1].guided
    assert guided is not None
    assert json.loads(guided.value) == schema


def test_an_answer_that_was_begun_is_gone_on_with(served: Served) -> None:
    post(served, messages=[*HI, {"role": "assistant", "content": "The capital is"}])
    assert prompt_of(served).endswith("<assistant>The capital is")


def test_count_tokens(claude: Anthropic, served: Served) -> None:
    counted = claude.messages.count_tokens(model="script", messages=HI, system="Be brief.", tools=[WEATHER])
    claude.messages.create(**ASK, system="Be brief.", tools=[WEATHER])
    assert counted.input_tokens == len(served.engine.seen[-1][0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages: 'empty'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "messages: 'empty'"),
        ({"maximum": 1}, "unknown parameter: maximum"),
        ({"max_token": 1}, "did you mean max_tokens?"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: 'web_search_20250305'",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "no"}}, "expected one of the tools: weather"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
            "messages[0].content[0].type: 'tool_use'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text is required",
        ),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        (
            {"tools": [WEATHER, {"name": "f", "input_schema": {"$ref": "#/no"}}], "tool_choice": {"type": "any"}},
            "tools[1].input_schema",
        ),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"stop_sequences": [""]}, "stop_sequences: ''"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "prompt is too long"),
    ],
)
def test_errors_are_in_anthropics_shape(served: Served, change: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        answer = post(served, stream=stream, **change)
        assert answer.status_code == 400, answer.text
        body = answer.json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert words in body["error"]["message"]
        assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_errors_are_the_clients_own(claude: Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(**{**ASK, "model": "claude"})
    assert caught.value.request_id
    with served.client() as client:
        answer = client.get("/v1/messages")
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_either_header_may_hold_the_key(serve: Callable[..., Served]) -> None:
    served = serve(api_key="secret")
    for given in ({"api_key": "secret"}, {"auth_token": "secret"}):
        with Anthropic(base_url=served.url, max_retries=0, **given) as client:
            assert client.messages.create(**ASK).content
    for given in ({"api_key": "wrong"}, {"auth_token": "wrong"}, {"api_key": "secretx"}):
        wrong = Anthropic(base_url=served.url, max_retries=0, **given)
        with wrong as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASK)
    with served.client() as client:
        assert client.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": ""}).status_code == 401


def test_a_failure_within_a_stream_is_an_event(served: Served, claude: Anthropic) -> None:
    served.engine.finish_reason, served.engine.error = "error", "out of luck"
    found = named_events(post(served, stream=True))
    assert found[-1]["type"] == "error"
    assert found[-1]["error"] == {"type": "api_error", "message": "out of luck"}
    with pytest.raises(anthropic.APIStatusError, match="out of luck"), claude.messages.stream(**ASK) as stream:
        stream.until_done()


def test_leaving_a_stream_ends_its_request(served: Served, claude: Anthropic) -> None:
    served.engine.answer, served.engine.pause = "x" * 500, 0.01
    with claude.messages.stream(**{**ASK, "max_tokens": 500}) as stream:
        next(iter(stream.text_stream))
        assert served.engine.live
    eventually(lambda: not served.engine.live, "the request is aborted")
