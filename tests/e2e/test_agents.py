"""Conversations as Codex and Claude Code hold them, by the vendors' own clients, against the real model.

The model is too small to decide for itself when to call: `tool_choice` does. What an agent does with the calls,
turn after turn, is real.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from e2ekit import Running, eventually
from openai import OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.realmodel

SHELL: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string", "enum": ["ls", "cat README.md"]}},
    "required": ["command"],
    "additionalProperties": False,
}
FILES = {"ls": "README.md\nmain.py", "cat README.md": "A program that counts fish."}
TASK = "List the files of this folder, then say in one sentence what the program does."
SYSTEM = "You are a coding agent. Use the shell tool to look at files before you answer."
SHELL_TOOL: Any = {
    "type": "function",
    "name": "shell",
    "description": "Run a command.",
    "parameters": SHELL,
    "strict": True,
}
PATCH_TOOL: Any = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
BASH_TOOL: Any = {"name": "Bash", "description": "Run a command.", "input_schema": SHELL}


@pytest.fixture
def openai(smollm2: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


@pytest.fixture
def claude(smollm2: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=smollm2.url, api_key="none", max_retries=0, timeout=100) as client:
        yield client


def codex_turn(openai: OpenAI, items: list[Any], choice: Any, most: int = 32) -> Any:
    """One turn as Codex takes it: stateless, streamed, the answer's items appended to the conversation."""
    with openai.responses.stream(
        model="smollm2",
        instructions=SYSTEM,
        input=items,
        tools=[SHELL_TOOL, PATCH_TOOL],
        tool_choice=choice,
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        temperature=0,
        max_output_tokens=most,
    ) as stream:
        deltas: dict[int, str] = {}
        done: list[Any] = []
        final: Any = None
        for event in stream:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
            elif event.type == "response.output_item.done":
                done.append(event.item)
            elif event.type in ("response.completed", "response.incomplete"):
                final = event.response
    assert [item.id for item in final.output] == [item.id for item in done]
    for place, item in enumerate(done):
        if item.type == "function_call":
            assert deltas[place] == item.arguments
        elif item.type == "message":
            assert deltas[place] == item.content[0].text
    items += [item.model_dump(exclude_none=True) for item in done]
    return final


def test_codex_loop(openai: OpenAI) -> None:
    """Two calls, their results, then words: each turn sends the whole conversation and finds most of it cached."""
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "The sandbox is read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]},
    ]
    for _ in range(2):
        final = codex_turn(openai, items, {"type": "function", "name": "shell"})
        call = final.output[-1]
        assert (call.type, call.name) == ("function_call", "shell")
        output = FILES[json.loads(call.arguments)["command"]]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    items.append({"role": "user", "content": "Now answer in one sentence."})
    final = codex_turn(openai, items, "auto")
    assert final.output_text.strip()
    assert final.usage.input_tokens_details.cached_tokens > final.usage.input_tokens // 2
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


def test_codex_patch(openai: OpenAI) -> None:
    """A custom tool is called with free text. 16 tokens may cut it off: then the response says so."""
    items: list[Any] = [{"role": "user", "content": "Write the word fish into a.txt."}]
    final: Any = codex_turn(openai, items, {"type": "custom", "name": "apply_patch"}, most=16)
    assert [(item.type, item.name, item.status) for item in final.output] == [
        ("custom_tool_call", "apply_patch", final.status)
    ]
    assert isinstance(final.output[0].input, str)


def test_a_required_call(openai: OpenAI) -> None:
    answer = openai.responses.create(
        model="smollm2", input=TASK, tools=[SHELL_TOOL], tool_choice="required", temperature=0, max_output_tokens=60
    )
    assert answer.status == "completed"
    assert {item.type for item in answer.output} == {"function_call"}
    call: Any = answer.output[0]
    assert json.loads(call.arguments)["command"] in FILES


def test_a_stored_conversation_goes_on(openai: OpenAI) -> None:
    wanted: Any = {"model": "smollm2", "temperature": 0, "max_output_tokens": 24}
    first = openai.responses.create(input="What is the capital of France? Answer with one word.", **wanted)
    assert "Paris" in first.output_text
    second = openai.responses.create(input="And of Italy?", previous_response_id=first.id, **wanted)
    whole = openai.responses.create(
        input=[
            {"role": "user", "content": "What is the capital of France? Answer with one word."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And of Italy?"},
        ],
        store=False,
        **wanted,
    )
    assert second.output_text == whole.output_text
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


def test_a_parsed_answer(openai: OpenAI) -> None:
    answer = openai.responses.parse(
        model="smollm2", input="Give me a person.", text_format=Person, temperature=0, max_output_tokens=60
    )
    assert isinstance(answer.output_parsed, Person)


def test_three_apis_say_the_same(openai: OpenAI, claude: Anthropic) -> None:
    """One core: whatever the dialect, whole or streamed, the same tokens."""
    question: Any = [{"role": "user", "content": "Name three fish."}]
    chat = openai.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=8)
    text = chat.choices[0].message.content
    response = openai.responses.create(model="smollm2", input=question, temperature=0, max_output_tokens=8)
    message = claude.messages.create(
        model="smollm2", messages=question, max_tokens=8, extra_body={"temperature": 0}
    )
    with claude.messages.stream(
        model="smollm2", messages=question, max_tokens=8, extra_body={"temperature": 0}
    ) as stream:
        streamed = "".join(stream.text_stream)
    assert response.output_text == message.content[0].to_dict()["text"] == streamed == text
    assert chat.usage is not None
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == chat.usage.prompt_tokens


def claude_turn(claude: Anthropic, messages: list[Any], choice: Any) -> Any:
    """One turn as Claude Code takes it: streamed, the answer's blocks appended to the conversation."""
    with claude.messages.stream(
        model="smollm2",
        system=[
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={secrets.token_hex(3)};"},
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        messages=messages,
        tools=[BASH_TOOL],
        tool_choice=choice,
        max_tokens=32,
        metadata={"user_id": "user_0"},
        extra_body={"temperature": 0, "context_management": {"edits": []}},
    ) as stream:
        jsons: dict[int, str] = {}
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                jsons[event.index] = jsons.get(event.index, "") + event.delta.partial_json
        final = stream.get_final_message()
    for place, block in enumerate(final.content):
        if block.type == "tool_use":
            assert json.loads(jsons[place]) == block.input
    messages.append({"role": "assistant", "content": [block.to_dict() for block in final.content]})
    return final


def test_claude_code_loop(claude: Anthropic) -> None:
    """Two calls, their results, one of them an error, then words."""
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for turn in range(2):
        final = claude_turn(claude, messages, {"type": "tool", "name": "Bash"})
        assert final.stop_reason == "tool_use"
        call = final.content[-1]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": FILES[call.input["command"]]}
        if turn:
            result |= {"content": [{"type": "text", "text": "permission denied"}], "is_error": True}
        messages.append({"role": "user", "content": [result]})
    messages[-1]["content"].append({"type": "text", "text": "Now answer in one sentence."})
    final = claude_turn(claude, messages, {"type": "auto"})
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert final.content[0].text.strip()
    assert final.usage.cache_read_input_tokens > final.usage.input_tokens
    counted = claude.messages.count_tokens(
        model="smollm2", system=SYSTEM, messages=messages[:-1], tools=[BASH_TOOL]
    )
    assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens


def test_stop_sequences_of_claude(claude: Anthropic) -> None:
    answer = claude.messages.create(
        model="smollm2",
        max_tokens=40,
        messages=[
            {"role": "user", "content": "Count: 1, 2, 3, 4,"},
            {"role": "assistant", "content": "1, 2, 3, 4,"},
        ],
        stop_sequences=[" 7"],
        extra_body={"temperature": 0},
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " 7")
    assert answer.content[0].to_dict()["text"] == " 5, 6,"


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_leaving_mid_stream_frees_the_blocks(openai: OpenAI, claude: Anthropic, smollm2: Running, api: str) -> None:
    """Escape is pressed: the request ends in the engine, and the next one is served."""
    engine = smollm2.replica.engine
    assert engine is not None
    long: Any = [{"role": "user", "content": "Count from one to one thousand."}]
    if api == "responses":
        extra: Any = {"ignore_eos": True}
        with openai.responses.stream(
            model="smollm2", input=long, max_output_tokens=1500, extra_body=extra
        ) as response:
            for event in response:
                if event.type == "response.output_text.delta":
                    break
            assert engine.stats().kv_used_blocks > 0
    else:
        with claude.messages.stream(
            model="smollm2", messages=long, max_tokens=1500, extra_body={"ignore_eos": True}
        ) as message:
            next(iter(message.text_stream))
            assert engine.stats().kv_used_blocks > 0
    eventually(smollm2.idle, "the blocks are free")
