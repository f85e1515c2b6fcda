"""`/v1/responses`: items, events and errors as OpenAI's own client reads them, over the script engine."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import APIError, AuthenticationError, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel
from serverkit import Served, eventually, named_events, prompt_of

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}

BROKEN: Any = {"type": "function", "name": "broken", "parameters": {"$ref": "#/no"}}


@pytest.fixture
def openai(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def events(response: httpx.Response) -> list[dict[str, Any]]:
    found = named_events(response)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def post(served: Served, **body: Any) -> httpx.Response:
    with served.client() as client:
        return client.post("/v1/responses", json={"model": "script", **body})


def test_whole_answer(openai: OpenAI, served: Served) -> None:
    answer = openai.responses.create(model="script", input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert answer.output_text == "Hello, wörld!"
    assert answer.status == "completed"
    assert answer.error is None
    assert answer.incomplete_details is None
    assert answer.metadata == {"a": "b"}
    assert answer.tools == []
    assert answer.tool_choice == "auto"
    assert prompt_of(served) == "<system>Be brief.\n<user>Hi\n<assistant>"
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(served.engine.seen[0][0])
    assert answer.usage.input_tokens_details.cached_tokens == 2
    assert answer.usage.output_tokens == 14
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + 14


def test_every_event_of_a_stream(served: Served) -> None:
    found = events(post(served, input="Hi", stream=True))
    kinds = [event["type"] for event in found]
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in deltas) == "Hello, wörld!"
    final = found[-1]["response"]
    assert final["output"] == [found[-2]["item"]]
    assert final["usage"]["output_tokens"] == 14
    assert found[0]["response"]["status"] == "in_progress"
    assert found[0]["response"]["output"] == []
    assert {event["item_id"] for event in deltas} == {final["output"][0]["id"]}


def test_the_clients_own_stream_helper(openai: OpenAI) -> None:
    with openai.responses.stream(model="script", input="Hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Hello, wörld!"


def test_max_output_tokens_leave_it_incomplete(openai: OpenAI, served: Served) -> None:
    answer = openai.responses.create(model="script", input="Hi", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    assert events(post(served, input="Hi", max_output_tokens=3, stream=True))[-1]["type"] == "response.incomplete"


def test_a_limit_above_the_context_is_lowered_to_it(openai: OpenAI, served: Served) -> None:
    openai.responses.create(model="script", input="Hi", max_output_tokens=32_000)
    prompt, params = served.engine.seen[-1]
    assert params.max_tokens == served.engine.max_model_len - len(prompt)


def test_conversation_of_items(served: Served) -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Paris?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "x": 1}]},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city":"Paris"}',
            "status": "x",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "18 C"},
    ]
    post(served, input=items, instructions="Be brief.", tools=[WEATHER])
    said = prompt_of(served)
    # Instructions and developer's message are one system message: many templates refuse a second.
    assert "<system>Be brief.\n\nRules.\n<user>Paris?\n" in said
    # What the assistant said and called is one message.
    assert "<assistant>I look.[weather]\n<tool>18 C\n<assistant>" in said


def test_an_image_that_a_tool_returns_is_no_error(served: Served) -> None:
    """llama.cpp#23465: the client can't take back what its tool returned."""
    items = [
        {"role": "user", "content": "Look"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "a cat"}, {"type": "input_image", "image_url": "data:x"}],
        },
    ]
    assert post(served, input=items).status_code == 200
    assert "a cat\n[image: not shown" in prompt_of(served)


def test_forced_call_and_the_answer_to_its_result(openai: OpenAI, served: Served) -> None:
    served.engine.answer = '{"city": "Paris"}'
    choice: Any = {"type": "function", "name": "weather"}
    first = openai.responses.create(model="script", input="Paris?", tools=[WEATHER], tool_choice=choice)
    call = first.output[0]
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("weather", '{"city": "Paris"}', "completed")
    served.engine.answer = "Mild."
    items: Any = [
        {"role": "user", "content": "Paris?"},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"},
    ]
    second = openai.responses.create(model="script", input=items, tools=[WEATHER], tool_choice="none")
    assert second.output_text == "Mild."
    assert "[weather]\n<tool>18 C\n" in prompt_of(served)


def test_calls_of_the_model_stream_as_items(served: Served) -> None:
    """The model decides: text, then two calls in its family's notation (here Hermes')."""
    served.engine.answer = (
        "Let me see.\n"
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>\n'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    )
    found = events(post(served, input="Paris, Rome?", tools=[WEATHER], stream=True))
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["message", "function_call", "function_call"]
    arguments = [event["arguments"] for event in found if event["type"] == "response.function_call_arguments.done"]
    assert [json.loads(text) for text in arguments] == [{"city": "Paris"}, {"city": "Rome"}]
    deltas = [event for event in found if event["type"] == "response.function_call_arguments.delta"]
    for place, text in zip((1, 2), arguments, strict=True):
        assert "".join(event["delta"] for event in deltas if event["output_index"] == place) == text
    assert found[-1]["response"]["output"] == done
    whole = post(served, input="Paris, Rome?", tools=[WEATHER]).json()
    assert [without_ids(item) for item in whole["output"]] == [without_ids(item) for item in done]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_custom_tool_takes_free_text(openai: OpenAI, served: Served) -> None:
    """Codex's apply_patch: text with line breaks and quotes comes back as it was meant."""
    served.engine.answer = json.dumps({"input": '*** Begin Patch\n+"é"\n'})
    choice: Any = {"type": "custom", "name": "apply_patch"}
    with openai.responses.stream(model="script", input="Edit", tools=[PATCH], tool_choice=choice) as stream:
        kinds = [event.type for event in stream]
        call = stream.get_final_response().output[0]
    assert call.type == "custom_tool_call"
    assert call.input == '*** Begin Patch\n+"é"\n'
    assert "response.custom_tool_call_input.delta" in kinds
    # The model is told of the grammar.
    assert "Begin Patch" in prompt_of(served)
    items: Any = [
        {"role": "user", "content": "Edit"},
        call.model_dump(),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done"},
    ]
    openai.responses.create(model="script", input=items, tools=[PATCH])
    assert "[apply_patch]\n<tool>Done\n" in prompt_of(served)


def test_tools_that_codex_sends_are_taken(served: Served) -> None:
    """llama.cpp#20156: Codex adds web_search by itself, and each MCP server as a namespace."""
    namespace = {"type": "namespace", "name": "mcp__files", "tools": [{**WEATHER, "name": "read"}]}
    hosted = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    served.engine.answer = '{"city": "x"}'
    choice = {"type": "function", "name": "read", "namespace": "mcp__files"}
    answer = post(served, input="Hi", tools=[WEATHER, namespace, *hosted], tool_choice=choice).json()
    call = answer["output"][0]
    assert (call["name"], call["namespace"]) == ("read", "mcp__files")
    assert "mcp__files__read" in prompt_of(served)
    assert "web_search" not in prompt_of(served)
    call = {**call, "call_id": "c1"}
    post(served, input=[{"role": "user", "content": "Hi"}, call], tools=[namespace])
    assert "[mcp__files__read]" in prompt_of(served)


def test_codex_request_is_taken_whole(served: Served) -> None:
    body = {
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ],
        "tools": [WEATHER, PATCH],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "medium"},
        "service_tier": "priority",
        "client_metadata": {"x-codex": "1"},
    }
    assert events(post(served, **body))[-1]["type"] == "response.completed"


def test_effort_none_turns_thinking_off() -> None:
    from shoal.server.responses.conversion import chat_request, input_items
    from shoal.server.responses.request import ResponseReasoning, ResponsesRequest
    from shoal.server.responses.tools import Offer

    for effort, variables in (("none", {"enable_thinking": False, "thinking": False}), ("max", None)):
        body = ResponsesRequest(model="m", input="Hi", reasoning=ResponseReasoning(effort))  # type: ignore[arg-type]
        chat = chat_request(body, input_items(body), Offer({}, None))
        assert chat.chat_template_kwargs == variables
        assert chat.reasoning_effort == ("none" if effort == "none" else "xhigh")


def test_structured_output_is_parsed(openai: OpenAI, served: Served) -> None:
    class City(BaseModel):
        name: str

    served.engine.answer = '{"name": "Paris"}'
    answer = openai.responses.parse(model="script", input="Capital?", text_format=City)
    assert answer.output_parsed == City(name="Paris")
    guided = served.engine.seen[-1][1].guided
    assert guided is not None
    assert "name" in guided.value


def test_logprobs_are_included_on_request(openai: OpenAI) -> None:
    answer = openai.responses.create(
        model="script", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4
    )
    content: Any = answer.output[0]
    entries = content.content[0].logprobs
    assert [entry.token for entry in entries] == ["H", "e", "l", "l"]
    assert len(entries[0].top_logprobs) == 2


def test_previous_response_is_gone_on_from(openai: OpenAI, served: Served) -> None:
    first = openai.responses.create(model="script", input="Hi", instructions="Be brief.")
    second = openai.responses.create(model="script", input="And?", previous_response_id=first.id)
    # Instructions are those of one request.
    assert prompt_of(served) == "<user>Hi\n<assistant>Hello, wörld!\n<user>And?\n<assistant>"
    third = openai.responses.create(model="script", input="So?", previous_response_id=second.id)
    assert "<user>And?\n<assistant>Hello, wörld!\n<user>So?\n" in prompt_of(served)
    assert third.previous_response_id == second.id
    assert openai.responses.retrieve(first.id).output_text == "Hello, wörld!"
    openai.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(first.id)
    with pytest.raises(BadRequestError) as caught:
        openai.responses.create(model="script", input="?", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    # What went on from it has its own copy.
    openai.responses.create(model="script", input="?", previous_response_id=second.id)


def test_item_references_are_resolved_or_refused(openai: OpenAI, served: Served) -> None:
    first = openai.responses.create(model="script", input="Hi")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    items: Any = [{"role": "user", "content": "Hi"}, reference, {"role": "user", "content": "And?"}]
    openai.responses.create(model="script", input=items)
    assert prompt_of(served) == "<user>Hi\n<assistant>Hello, wörld!\n<user>And?\n<assistant>"
    unstored = openai.responses.create(model="script", input="Hi", store=False)
    with pytest.raises(BadRequestError) as caught:
        openai.responses.create(
            model="script", input=[{"type": "item_reference", "id": unstored.output[0].id or ""}]
        )
    assert caught.value.param == "input[0].id"


def test_sealed_reasoning_comes_back(served: Served) -> None:
    """Codex hands back only `encrypted_content`."""
    from shoal.server.responses.conversion import opened, sealed

    assert opened(sealed("Höhe\n")) == "Höhe\n"
    assert opened("gAAAA") == opened("shoal1:%%%") == ""
    item = {"type": "reasoning", "summary": [], "encrypted_content": "from another server"}
    assert post(served, input=[item, {"role": "user", "content": "Hi"}]).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {
                "tools": [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [WEATHER, BROKEN]}],
                "tool_choice": "required",
            },
            "tools[1].tools[1].parameters.$ref",
        ),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"maximum_tokens": 1}, "maximum_tokens"),
        ({"input": "x" * 2000}, "input"),
    ],
)
def test_errors_name_the_field(served: Served, change: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer = post(served, **{"input": "Hi", "stream": stream, **change})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param, error
        assert error["type"] == "invalid_request_error"


def test_allowed_tools(served: Served) -> None:
    other = {**WEATHER, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    served.engine.answer = '[{"name": "other", "arguments": {}}]'
    answer = post(served, input="Hi", tools=[WEATHER, other], tool_choice=choice).json()
    assert answer["output"][0]["name"] == "other"
    assert "Weather of a city" in prompt_of(served)
    assert '"weather"' not in prompt_of(served)


def test_a_failure_within_a_stream_is_an_event(served: Served, openai: OpenAI) -> None:
    served.engine.finish_reason, served.engine.error = "error", "out of luck"
    found = events(post(served, input="Hi", stream=True))
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"] == {"code": "server_error", "message": "out of luck"}
    with pytest.raises(APIError):
        openai.responses.create(model="script", input="Hi")


def test_a_failure_before_the_first_token_follows_the_beginning(serve: Callable[..., Served]) -> None:
    """A heartbeat has begun the stream: the client's helper wants `response.created` before anything else."""
    served = serve(heartbeat_seconds=0.05)
    served.engine.pause, served.engine.answer = 0.5, "x"
    served.engine.finish_reason, served.engine.error = "error", "out of luck"
    answer = post(served, input="Hi", stream=True)
    assert answer.status_code == 200
    kinds = [line for line in answer.text.split("\n") if line.startswith("event: ")]
    assert kinds == ["event: response.created", "event: response.in_progress", "event: response.failed"]


def test_leaving_a_stream_ends_its_request(served: Served, openai: OpenAI) -> None:
    served.engine.answer, served.engine.pause = "x" * 500, 0.01
    stream = openai.responses.create(model="script", input="Hi", stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    assert served.engine.live
    stream.close()
    eventually(lambda: not served.engine.live, "the request is aborted")


def test_key_is_needed_for_all_of_it(serve: Callable[..., Served]) -> None:
    served = serve(api_key="secret")
    with OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(AuthenticationError):
            client.responses.create(model="script", input="Hi")
        with pytest.raises(AuthenticationError):
            client.responses.retrieve("resp_1")
