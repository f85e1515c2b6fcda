"""A Responses request as a chat request: items to messages, `text.format` to `response_format`."""

import base64
import binascii
from collections.abc import Sequence

import msgspec

from shoal.http.errors import ApiError, bad_value
from shoal.server.fields import (
    JsonObject,
    JsonObjectFormat,
    JsonSchemaFormat,
    JsonSchemaResponseFormat,
    ResponseFormat,
)
from shoal.server.protocol import ChatRequest
from shoal.server.responses.request import InputItem, InputPart, ResponsesRequest, ResponseTextFormat
from shoal.server.responses.tools import Offer, flat_name
from shoal.server.transcript import OMITTED_IMAGE, Transcript

FIELD_NAMES: dict[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""The chat core's names of fields, and what a Responses client calls them."""
_ENVELOPE = "shoal1:"
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


def input_items(body: ResponsesRequest) -> list[InputItem]:
    """`input` as items."""
    if isinstance(body.input, str):
        return [InputItem(type="message", role="user", content=body.input)]
    return list(body.input or ())


def chat_request(body: ResponsesRequest, items: Sequence[InputItem], offer: Offer) -> ChatRequest:
    """`body` with the whole conversation `items`; `ApiError` 400 names the item that can't be used."""
    transcript = Transcript()
    if body.instructions:
        transcript.system([body.instructions])
    for place, item in enumerate(items):
        _add(transcript, item, f"input[{place}]")
    messages = transcript.messages()
    if not messages:
        raise ApiError(400, "input: expected at least one item", param="input", code="missing_required_parameter")
    text, include = body.text, body.include or ()
    effort = body.reasoning.effort if body.reasoning is not None else None
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=offer.chat_tools,
        tool_choice=offer.choice,
        parallel_tool_calls=body.parallel_tool_calls,
        max_completion_tokens=body.max_output_tokens,
        response_format=_response_format(text.format) if text is not None and text.format is not None else None,
        verbosity=text.verbosity if text is not None else None,
        reasoning_effort="xhigh" if effort == "max" else effort,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=body.stop,
        ignore_eos=body.ignore_eos,
        logprobs=LOGPROBS in include or None,
        top_logprobs=body.top_logprobs if LOGPROBS in include else None,
        chat_template_kwargs=_template_variables(body),
        cache_salt=body.cache_salt,
        priority=body.priority,
        stream=body.stream,
    )


def _template_variables(body: ResponsesRequest) -> JsonObject | None:
    """Effort `none` also under the names by which chat templates turn thinking off."""
    if body.reasoning is None or body.reasoning.effort != "none":
        return body.chat_template_kwargs
    return {"enable_thinking": False, "thinking": False} | (body.chat_template_kwargs or {})


def _response_format(form: ResponseTextFormat) -> ResponseFormat | None:
    if form.type == "json_object":
        return JsonObjectFormat()
    if form.type == "text":
        return None
    if form.schema is None:
        raise ApiError(
            400, "text.format.schema is required", param="text.format.schema", code="missing_required_parameter"
        )
    named = JsonSchemaFormat(form.name or "response", form.schema, form.description, form.strict)
    return JsonSchemaResponseFormat(named)


def _add(transcript: Transcript, item: InputItem, at: str) -> None:
    match item.type or "message":
        case "message":
            _add_message(transcript, item, at)
        case "reasoning":
            if text := _reasoning(item):
                transcript.reasoning(text)
        case "function_call":
            name = flat_name(_needed(item, "name", at), item.namespace)
            transcript.call(_needed(item, "call_id", at), name, item.arguments or "{}")
        case "custom_tool_call":
            arguments = msgspec.json.encode({"input": item.input or ""}).decode()
            transcript.call(_needed(item, "call_id", at), _needed(item, "name", at), arguments)
        case "function_call_output" | "custom_tool_call_output":
            if item.output is None:
                raise _missing(f"{at}.output")
            texts = [item.output] if isinstance(item.output, str) else _tool_texts(item.output)
            transcript.result(_needed(item, "call_id", at), texts)
        case _:
            raise bad_value(f"{at}.type", item.type, "expected the item itself")


def _add_message(transcript: Transcript, item: InputItem, at: str) -> None:
    if item.content is None:
        raise _missing(f"{at}.content")
    texts = [item.content] if isinstance(item.content, str) else _texts(item.content, f"{at}.content")
    if item.role is None:
        raise _missing(f"{at}.role")
    if item.role == "assistant":
        transcript.say(texts)
    elif item.role == "user":
        transcript.user(texts)
    else:
        transcript.system(texts)


def _texts(parts: Sequence[InputPart], at: str) -> list[str]:
    texts = []
    for place, part in enumerate(parts):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type in ("input_image", "input_file", "input_audio"):
            raise bad_value(
                f"{at}[{place}].type", part.type, "expected text: the model of this server reads nothing else"
            )
        if text is None:
            raise _missing(f"{at}[{place}].text")
        texts.append(text)
    return texts


def _tool_texts(parts: Sequence[InputPart]) -> list[str]:
    return [part.text if part.text is not None else OMITTED_IMAGE for part in parts]


def _reasoning(item: InputItem) -> str:
    """The text of a reasoning item: its content, what we put into `encrypted_content`, or the summary."""
    content = item.content if isinstance(item.content, list) else []
    if isinstance(item.content, str) and item.content:
        return item.content
    if text := "\n".join(part.text for part in content if part.text):
        return text
    if item.encrypted_content and (text := opened(item.encrypted_content)):
        return text
    return "\n".join(part.text for part in item.summary or () if part.text)


def sealed(text: str) -> str:
    """Return reasoning as an opaque string to hand back. It is no encryption: the text itself is sent anyway."""
    return _ENVELOPE + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def opened(content: str) -> str:
    """What `sealed` put in; empty for another server's envelope."""
    if not content.startswith(_ENVELOPE):
        return ""
    try:
        return base64.b64decode(content[len(_ENVELOPE) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _needed(item: InputItem, field: str, at: str) -> str:
    value = getattr(item, field)
    if not isinstance(value, str):
        raise _missing(f"{at}.{field}")
    return value


def _missing(field: str) -> ApiError:
    return ApiError(400, f"{field} is required", param=field, code="missing_required_parameter")
