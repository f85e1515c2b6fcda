"""A conversation of the API as the token ids of the model's own chat template."""

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.engine.errors import ChatTemplateError
from shoal.engine.text.tokenizer import Tokenizer
from shoal.http.errors import ApiError
from shoal.server.fields import JsonObject
from shoal.server.prompts import check_fits, check_tokenized_bytes, encode_prompt
from shoal.server.protocol import ChatMessage, ChatRequest, TokenizeRequest, Tool


def render_chat(
    tokenizer: Tokenizer, body: ChatRequest | TokenizeRequest, tools: Sequence[Tool], *, limit: int | None = None
) -> list[int]:
    """Token ids of `body.messages`; `ApiError` 400 with the template's complaint if it refuses them.

    With `limit`, a conversation that can't have fewer tokens is refused before it is tokenized.
    """
    messages = [_message(message) for message in body.messages or ()]
    if limit is not None:
        _check_each(tokenizer, messages, limit)
    variables: JsonObject = dict(body.chat_template_kwargs or {})
    if isinstance(body, ChatRequest) and body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    try:
        text = tokenizer.render_chat(
            messages,
            tools=[_tool(tool) for tool in tools] or None,
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=variables,
            continue_final_message=body.continue_final_message is True,
        )
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages", code="chat_template_error") from None
    if limit is None:
        check_tokenized_bytes(text, "messages")
    return encode_prompt(tokenizer, text, add_special_tokens=False, field="messages", limit=limit)


def _check_each(tokenizer: Tokenizer, messages: Sequence[JsonObject], limit: int) -> None:
    """Refuse one that can't fit by itself before a template copies it, which holds the GIL.

    Templates trim white space and leave out parts of earlier answers; other text they keep.
    """
    for message in messages:
        text = message["content"]
        if isinstance(text, str) and message["role"] != "assistant":
            check_fits(tokenizer, text.strip(), "messages", limit)


def _message(message: ChatMessage) -> dict[str, Any]:
    """What a template may look at: no key that the client left out, for templates ask `is defined`."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.content is not None and not isinstance(message.content, str):
        shown = (part.shown for part in message.content)
        plain["content"] = [{"type": "text", "text": text} for text in shown if text is not None]
    if message.content is None and message.refusal:
        plain["content"] = message.refusal
    if message.function_call is not None and not message.tool_calls:
        call = message.function_call
        function = {"name": call.name, "arguments": call.arguments_text}
        plain["tool_calls"] = [{"id": f"call_{call.name}", "type": "function", "function": function}]
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments_text},
            }
            for call in message.tool_calls
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.reasoning_content is None and isinstance(message.reasoning, str):
        plain["reasoning_content"] = message.reasoning
    if message.role == "function":
        plain |= {"role": "tool", "tool_call_id": message.tool_call_id or f"call_{message.name}"}
    # Templates know `system`; OpenAI's newer clients send the same thing as `developer`.
    if message.role == "developer":
        plain["role"] = "system"
    return plain


def _tool(tool: Tool) -> dict[str, Any]:
    function = {k: v for k, v in msgspec.to_builtins(tool.function).items() if v is not None}
    return {"type": "function", "function": function}
