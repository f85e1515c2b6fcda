"""Reasoning in the dialects of `/v1/responses` and `/v1/messages`: shown, counted, handed back."""

import json
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI
from serverkit import Served, prompt_of
from test_server_reasoning import TEMPLATES, tokenizer_with

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
ANSWER = f"<think>\nA trip?\n</think>\n\nI look.\n{CALL}"
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture
def thinking(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The script's model thinks, then speaks, then calls."""
    tokenizer = tokenizer_with(served.engine, TEMPLATES["think"], "<think>", "</think>")
    monkeypatch.setattr(served.engine, "tokenizer", tokenizer)
    served.engine.answer = ANSWER
    return served


def test_responses(thinking: Served) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
    with OpenAI(base_url=f"{thinking.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(
            model="script", input="Hi", tools=[tool], include=["reasoning.encrypted_content"]
        ) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        thought = final.output[0]
        assert thought.type == "reasoning"
        assert thought.content is not None
        text = thought.content[0].text
        assert text.strip() == "A trip?"
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert len(deltas) > 1
        assert "".join(deltas) == text
        kinds = [event.type for event in events if getattr(event, "output_index", None) == 0]
        assert [kind for kind in kinds if not kind.endswith("delta")] == [
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ]
        assert final.usage is not None
        # Between the marks: one token per byte.
        assert final.usage.output_tokens_details.reasoning_tokens == len("\nA trip?\n")
        # Codex hands back what is sealed, not the text.
        returned = [item.model_dump(exclude_none=True) for item in final.output]
        returned[0]["content"] = None
        call: Any = final.output[2]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "4 C"}
        client.responses.create(model="script", input=[{"role": "user", "content": "Hi"}, *returned, result])
    assert f"({text})" in prompt_of(thinking)


def test_messages(thinking: Served) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    ask: Any = {
        "model": "script",
        "max_tokens": 400,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [tool],
    }
    with Anthropic(base_url=thinking.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(**ask) as stream:
            events = list(stream)
            final = stream.get_final_message()
        whole = client.messages.create(**ask)
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
        assert [block.to_dict() for block in final.content[:2]] == [block.to_dict() for block in whole.content[:2]]
        thought = final.content[0]
        assert thought.type == "thinking"
        assert thought.thinking.strip() == "A trip?"
        assert thought.signature
        kinds = [event.delta.type for event in events if event.type == "content_block_delta" and event.index == 0]
        assert kinds[-1] == "signature_delta"
        assert set(kinds[:-1]) == {"thinking_delta"}
        assert whole.usage.output_tokens_details is not None
        assert whole.usage.output_tokens_details.thinking_tokens == len("\nA trip?\n")
        call: Any = final.content[2]
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "4 C"}]}
        messages = [*ask["messages"], {"role": "assistant", "content": final.content}, result]
        client.messages.create(**{**ask, "messages": messages})
    assert f"({thought.thinking})" in prompt_of(thinking)


def test_cut_off_while_thinking(thinking: Served) -> None:
    with thinking.client() as client:
        body = {"model": "script", "max_tokens": 6, "messages": [{"role": "user", "content": "Hi"}]}
        message = client.post("/v1/messages", json=body).json()
        response = client.post(
            "/v1/responses", json={"model": "script", "input": "Hi", "max_output_tokens": 6}
        ).json()
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert message["stop_reason"] == "max_tokens"
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "incomplete")]
    assert response["status"] == "incomplete"
    assert json.dumps(response["usage"]["output_tokens_details"]) == '{"reasoning_tokens": 5}'
