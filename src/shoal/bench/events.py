"""What an OpenAI-compatible server sends back, as far as a benchmark reads it."""

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Raw] | None = None


class Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    """Of completions."""
    delta: Delta | None = None
    """Of chat."""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """With the first event of a completion."""

    @property
    def visible(self) -> bool:
        """The user sees something new."""
        if self.text:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
        )


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """One payload of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Raw | UnsetType = UNSET


class _Problem(msgspec.Struct, frozen=True):
    message: str | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Problem | str | None = None
    message: str | None = None
    detail: Raw | UnsetType = UNSET


DONE = b"[DONE]"
_ERROR_LENGTH = 300


def error_text(body: bytes) -> str:
    """What a server's error body says, shortened."""
    try:
        parsed = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.DecodeError:
        return body[:_ERROR_LENGTH].decode("utf-8", "replace").strip()
    if isinstance(parsed.error, str):
        return parsed.error[:_ERROR_LENGTH]
    message = (parsed.error.message if parsed.error else None) or parsed.message
    if message is None and isinstance(parsed.detail, Raw):
        message = bytes(parsed.detail).decode("utf-8", "replace")
    return (message or body.decode("utf-8", "replace"))[:_ERROR_LENGTH].strip()
