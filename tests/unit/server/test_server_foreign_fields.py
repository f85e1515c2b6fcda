"""What real clients and gateways send beside the fields of the API: ignored below the top level, never an error."""

import json
import typing
from typing import Any

import pytest
from openai import OpenAI
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from serverkit import Served, prompt_of

ASK: dict[str, Any] = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "other"}}


def post(served: Served, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    with served.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_tool_loop_as_litellm_sends_it(served: Served) -> None:
    """litellm#25595: the second turn died of `provider_specific_fields`."""
    call = {
        "id": "c1",
        "type": "function",
        "index": 0,
        "provider_specific_fields": None,
        "function": {"name": "weather", "arguments": "{}", "provider_specific_fields": {"a": 1}},
    }
    messages = [
        {"role": "user", "content": "Hi", "id": "m1"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "function_call": None,
            "audio": None,
            "refusal": None,
            "annotations": [],
            "images": [],
            "thinking_blocks": None,
            "provider_specific_fields": {"refusal": None},
        },
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sunny", "opts": {"x": 1}},
    ]
    post(served, {"model": "script", "messages": messages, "tools": [WEATHER]})
    assert prompt_of(served).endswith("<user>Hi\n<assistant>[weather]\n<tool>sunny\n<assistant>")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        # vllm#10463, copilot-sdk#1129: prompt caching marks of other vendors, ids, timestamps.
        ({"role": "user", "content": "A", "cache_control": {"type": "ephemeral"}, "timestamp": 1}, "<user>A"),
        (
            {"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]},
            "<user>A",
        ),
        ({"role": "user", "content": [{"type": "input_text", "text": "A", "annotations": []}]}, "<user>A"),
        ({"role": "assistant", "content": "A", "reasoning": "why", "reasoning_details": [{}]}, "<assistant>A"),
        ({"role": "assistant", "content": "A", "reasoning": {"effort": "low"}}, "<assistant>A"),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "why", "signature": "s"},
                    {"type": "text", "text": "A"},
                ],
            },
            "<assistant>A",
        ),
        ({"role": "assistant", "content": None, "refusal": "No.", "audio": {"id": "x"}}, "<assistant>No."),
        ({"role": "developer", "content": "A"}, "<system>A"),
        (
            {"role": "assistant", "content": "", "function_call": {"name": "weather", "arguments": "{}"}},
            "<assistant>[weather]",
        ),
        ({"role": "function", "name": "weather", "content": "sunny"}, "<tool>sunny"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
                ],
            },
            "<assistant>[weather]",
        ),
    ],
)
def test_messages_of_other_clients(served: Served, message: dict[str, Any], shown: str) -> None:
    post(served, {"model": "script", "messages": [message, {"role": "user", "content": "B"}]})
    assert prompt_of(served) == f"{shown}\n<user>B\n<assistant>"


def test_keys_beside_a_function(served: Served) -> None:
    tool = {**WEATHER, "cache_control": {"type": "ephemeral"}, "id": "t1", "opts": {}}
    tool["function"] = {**WEATHER["function"], "returns": {"type": "string"}, "strict": None}
    post(served, {**ASK, "tools": [tool]})
    assert '"name": "weather"' in prompt_of(served)
    assert "ephemeral" not in prompt_of(served)
    post(served, {**ASK, "stream": False, "response_format": {"type": "text", "name": "x"}})


def test_the_top_level_stays_strict(served: Served) -> None:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={**ASK, "provider_specific_fields": {}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "provider_specific_fields"
        response = client.post("/v1/chat/completions", json={**ASK, "max_token": 3})
        assert "did you mean max_tokens?" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "any",
        {"type": "function", "function": {"name": "weather"}},
        {"type": "function", "name": "weather"},
        {"type": "function", "function": {"name": "weather"}, "disable_parallel_tool_use": True},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
def test_every_way_to_make_the_model_call(served: Served, choice: Any) -> None:
    named = isinstance(choice, dict) and choice["type"] == "function"
    call = {"name": "weather", "arguments": {}}
    served.engine.answer = json.dumps({} if named else [call])
    answer = post(served, {**ASK, "tools": [WEATHER, OTHER], "tool_choice": choice})
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    guided = served.engine.seen[0][1].guided
    assert guided is not None
    assert served.engine.admits(guided, served.engine.answer)
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        assert not served.engine.admits(guided, json.dumps([{**call, "name": "other"}]))


def test_allowed_tools_in_mode_auto_shows_only_those(served: Served) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}
    post(served, {**ASK, "tools": [WEATHER, OTHER], "tool_choice": choice})
    assert '"weather"' in prompt_of(served)
    assert '"other"' not in prompt_of(served)


@pytest.mark.parametrize(
    ("choice", "param", "says"),
    [
        ("sometimes", "tool_choice", "expected one of"),
        ({"type": "function"}, "tool_choice.function.name", "required"),
        ({"type": "function", "function": {"name": "g"}}, "tool_choice", "one of the tools: weather"),
        ({"type": "custom", "custom": {"name": "g"}}, "tool_choice.type", "allowed_tools, function"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}},
            "tool_choice.allowed_tools.tools[0]",
            "'other'",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}},
            None,
            "function.name is required",
        ),
    ],
)
def test_choices_that_name_nothing(served: Served, choice: Any, param: str | None, says: str) -> None:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={**ASK, "tools": [WEATHER], "tool_choice": choice})
    assert response.status_code == 400
    error = response.json()["error"]
    assert param is None or error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"response_format": {"type": "json_object", "schema": {"type": "null"}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "schema": {"type": "null"}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
            "response_format.json_schema.schema",
        ),
        (
            {"structured_outputs": {"json": {"type": "null"}, "disable_any_whitespace": True}},
            "structured_outputs.json",
        ),
    ],
)
def test_every_place_of_a_schema(served: Served, extra: dict[str, Any], field: str) -> None:
    post(served, {**ASK, **extra})
    guided = served.engine.seen[0][1].guided
    assert guided is not None
    assert json.loads(guided.value) == {"type": "null"}
    wrong = json.loads(json.dumps(extra).replace("null", "nil"))
    with served.client() as client:
        error = client.post("/v1/chat/completions", json={**ASK, **wrong}).json()["error"]
    assert error["param"] == f"{field}.type"


def test_structured_outputs_without_a_constraint(served: Served) -> None:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={**ASK, "structured_outputs": {"regx": "a"}})
    assert response.status_code == 400
    assert "expected one of json, json_object, regex, choice, grammar" in response.json()["error"]["message"]


UNSUPPORTED = {
    # Sound, and tools that only OpenAI's own servers have; functions are tools now.
    *("audio", "web_search_options", "functions", "function_call", "moderation"),
}


def test_every_field_of_the_openai_client_is_known(served: Served) -> None:
    from shoal.server.protocol import ChatRequest, CompletionRequest

    for params, known in (
        (chat_params.CompletionCreateParamsBase, ChatRequest),
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
    ):
        fields = set(typing.get_type_hints(params))
        assert fields - set(known.__struct_fields__) <= UNSUPPORTED


def test_an_answer_of_the_client_goes_back_with_everything_it_holds(served: Served) -> None:
    served.engine.answer = '[{"name": "weather", "arguments": {}}]'
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=20) as openai:
        first = openai.chat.completions.create(**ASK, tools=[WEATHER], tool_choice="required").choices[0].message
        assert first.tool_calls
        result = {
            "role": "tool",
            "tool_call_id": first.tool_calls[0].id,
            "content": [{"type": "text", "text": "18"}],
        }
        dumped = {**first.model_dump(), "parsed": None, "tool_calls": [c.model_dump() for c in first.tool_calls]}
        for call in dumped["tool_calls"]:
            call["function"]["parsed_arguments"] = {}
        for message in (first, dumped):
            openai.chat.completions.create(model="script", messages=[*ASK["messages"], message, result])  # type: ignore[list-item]
    assert "[weather]\n<tool>18\n" in prompt_of(served)
