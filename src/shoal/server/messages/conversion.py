"""A Messages request as a chat request: content blocks to messages, `stop_sequences` to `stop`."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from shoal.http.errors import ApiError, bad_value
from shoal.server.fields import JsonObject, JsonSchemaFormat, JsonSchemaResponseFormat
from shoal.server.messages.request import (
    ContentBlock,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    ResultBlock,
    TextBlock,
)
from shoal.server.protocol import ChatRequest, FunctionDefinition, NamedFunction, NamedToolChoice, Tool
from shoal.server.transcript import OMITTED_IMAGE, Transcript

ChatToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
FIELD_NAMES: dict[str, str] = {
    "stop": "stop_sequences",
    "continue_final_message": "messages",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""The chat core's names of fields, and what a Messages client calls them."""
_BILLING = "x-anthropic-billing-header:"
"""Claude Code puts a line with a checksum of each request before its system prompt. It tells the model nothing, and
with it no two requests would share a cached prefix (vllm#36829, llama.cpp#20623)."""
_ERROR = "Error: "


def chat_request(body: CountTokensRequest) -> ChatRequest:
    """`ApiError` 400 names the block that can't be used."""
    _check(body)
    transcript = Transcript()
    if system := _system(body.system):
        transcript.system(system)
    for place, message in enumerate(body.messages):
        _add(transcript, message, f"messages[{place}]")
    messages = transcript.messages()
    if not messages:
        raise bad_value("messages", "empty", "expected at least one block of text")
    last = messages[-1]
    tools = [_tool(spec, f"tools[{place}]") for place, spec in enumerate(body.tools or ())]
    choice = body.tool_choice
    request = ChatRequest(
        model=body.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_choice(choice, bool(tools)),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        # A conversation that ends with the assistant's words is to be gone on from there.
        continue_final_message=(last.role == "assistant" and not last.tool_calls) or None,
        response_format=_response_format(body),
        reasoning_effort=_effort(body),
        chat_template_kwargs=_template_variables(body),
    )
    return _generation(request, body) if isinstance(body, MessagesRequest) else request


def _generation(request: ChatRequest, body: MessagesRequest) -> ChatRequest:
    return msgspec.structs.replace(
        request,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        cache_salt=body.cache_salt,
        priority=body.priority,
    )


def _check(body: CountTokensRequest) -> None:
    if body.mcp_servers:
        raise bad_value(
            "mcp_servers", f"{len(body.mcp_servers)} servers", "expected none: this server calls no tools"
        )
    if body.container is not None:
        raise bad_value("container", body.container, "expected none: this server runs no code")


def _system(system: str | Sequence[TextBlock] | None) -> list[str]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    kept = []
    for text in texts:
        if text.startswith(_BILLING):
            _, _, text = text.partition("\n")
        if text:
            kept.append(text)
    return kept


def _add(transcript: Transcript, message: InputMessage, at: str) -> None:
    if isinstance(message.content, str):
        _say(transcript, message.role, [message.content])
        return
    texts: list[str] = []
    for place, block in enumerate(message.content):
        here = f"{at}.content[{place}]"
        if block.type == "text":
            texts.append(_needed(block, "text", here))
            continue
        _say(transcript, message.role, texts)
        texts = []
        if message.role == "assistant":
            _add_assistants(transcript, block, here)
        elif block.type == "tool_result" and message.role == "user":
            _add_result(transcript, block, here)
        else:
            accepted = "text and tool_result blocks" if message.role == "user" else "text blocks"
            raise bad_value(f"{here}.type", block.type, f"expected {accepted}: the model reads text only")
    _say(transcript, message.role, texts)


def _say(transcript: Transcript, role: Literal["user", "assistant", "system"], texts: Sequence[str]) -> None:
    if not texts:
        return
    {"user": transcript.user, "assistant": transcript.say, "system": transcript.system}[role](texts)


def _add_assistants(transcript: Transcript, block: ContentBlock, at: str) -> None:
    if block.type == "thinking":
        if block.thinking:
            transcript.reasoning(block.thinking)
    elif block.type == "tool_use":
        arguments = bytes(block.input).decode()
        if arguments == "null":
            arguments = "{}"
        if not arguments.startswith("{"):
            raise bad_value(f"{at}.input", arguments, "expected an object")
        transcript.call(_needed(block, "id", at), _needed(block, "name", at), arguments)
    elif block.type != "redacted_thinking":
        raise bad_value(f"{at}.type", block.type, "expected text, thinking or tool_use blocks")


def _add_result(transcript: Transcript, block: ContentBlock, at: str) -> None:
    content = block.content
    texts = [content] if isinstance(content, str) else [_result_text(part) for part in content or ()]
    if block.is_error:
        texts = [_ERROR + (texts[0] if texts else "the tool failed"), *texts[1:]]
    transcript.result(_needed(block, "tool_use_id", at), texts)


def _result_text(part: ResultBlock) -> str:
    if part.text is not None:
        return part.text
    return OMITTED_IMAGE if part.type == "image" else f"[{part.type[:40]}: not shown, this model reads text only]"


def _tool(spec: MessagesTool, at: str) -> Tool:
    if spec.type not in (None, "custom"):
        raise bad_value(
            f"{at}.type", spec.type, "expected custom: this server runs no tools and knows no built-in ones"
        )
    return Tool(FunctionDefinition(spec.name, spec.description, spec.input_schema, spec.strict))


def _choice(
    choice: MessagesToolChoice | None, tools: bool
) -> Literal["none", "auto", "required"] | NamedToolChoice | None:
    match choice:
        case MessagesToolChoice(type="any"):
            return "required"
        case MessagesToolChoice(type="none"):
            return "none"
        case MessagesToolChoice(type="tool", name=name):
            if name is None:
                raise ApiError(
                    400, "tool_choice.name is required", param="tool_choice.name", code="missing_required_parameter"
                )
            return NamedToolChoice(NamedFunction(name))
        case _:
            return "auto" if tools else None


def _response_format(body: CountTokensRequest) -> JsonSchemaResponseFormat | None:
    config = body.output_config
    form = config.format if config is not None and config.format is not None else body.output_format
    return None if form is None else JsonSchemaResponseFormat(JsonSchemaFormat("output", form.schema))


def _effort(body: CountTokensRequest) -> Literal["low", "medium", "high", "xhigh"] | None:
    effort = None if body.output_config is None else body.output_config.effort
    return "xhigh" if effort == "max" else effort


def _template_variables(body: CountTokensRequest) -> JsonObject | None:
    """What `thinking` says, under the names that chat templates ask for; silence leaves it to the template."""
    variables: JsonObject = {}
    if body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        wanted = body.thinking.type == "enabled"
        variables = {"enable_thinking": wanted, "thinking": wanted}
    variables |= body.chat_template_kwargs or {}
    return variables or None


def _needed(block: ContentBlock, field: str, at: str) -> str:
    value = getattr(block, field)
    if not isinstance(value, str):
        raise ApiError(400, f"{at}.{field} is required", param=f"{at}.{field}", code="missing_required_parameter")
    return value
