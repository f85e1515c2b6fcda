"""Tokens of one request: as the engine counts them, or as they are seen to pass where it doesn't say.

Clients are billed and limited by this, so that it must not depend on what a client asks for or waits for.
"""

from dataclasses import dataclass

import msgspec

_SINGLE_CHARACTERS = 16
"""Text of one event up to this length is taken for one token."""
_CHARACTERS_PER_TOKEN = 4


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens as an engine counted them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens whose KV was reused; None: the engine doesn't say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details is not None else None

    @property
    def output(self) -> int:
        return self.completion_tokens or 0

    @property
    def total(self) -> int:
        return max(0, self.prompt_tokens) + max(0, self.output)

    def after(self, before: "Usage | None") -> "Usage":
        """This count, with what only an earlier event of the same stream said."""
        if before is None or (self.prompt_tokens and self.completion_tokens is not None):
            return self
        return Usage(
            self.prompt_tokens or before.prompt_tokens,
            before.completion_tokens if self.completion_tokens is None else self.completion_tokens,
            self.prompt_tokens_details or before.prompt_tokens_details,
        )


NOTHING_USED = Usage(0, 0)


def usage_from(prompt: int, output: int, cached: int | None) -> Usage:
    return Usage(prompt, output, _Details(cached) if cached is not None else None)


def estimate_tokens(characters: int) -> int:
    """Tokens of the text in one event: most engines send one token per event, some several at a time."""
    if characters <= _SINGLE_CHARACTERS:
        return 1 if characters else 0
    return characters // _CHARACTERS_PER_TOKEN


class AnyUsage(msgspec.Struct, frozen=True):
    """The names that all APIs have for it: OpenAI's two, and Anthropic's, where a prompt's parts are apart."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def unified(self) -> Usage:
        read = self.cache_read_input_tokens
        prompt = self.prompt_tokens
        if prompt is None:
            prompt = (self.input_tokens or 0) + (read or 0) + (self.cache_creation_input_tokens or 0)
        output = self.completion_tokens if self.completion_tokens is not None else self.output_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        if details is None and read is not None:
            details = _Details(read)
        return Usage(prompt, output, details)


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


class _Counted(msgspec.Struct, frozen=True):
    usage: AnyUsage | None = None


_counted = msgspec.json.Decoder(_Counted)
_answer = msgspec.json.Decoder(_Answer)


def usage_of(data: bytes) -> Usage | None:
    """The usage in a JSON body or event payload; None if there is none."""
    try:
        usage = _counted.decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return usage.unified() if usage is not None else None


class _Identified(msgspec.Struct):
    id: str = ""


def response_id_of(body: bytes) -> str:
    """The id of a whole answer; empty if it has none."""
    try:
        return msgspec.json.decode(body, type=_Identified).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def output_estimate(body: bytes) -> int:
    """Output tokens of a whole answer whose engine doesn't count, by the size of its text."""
    try:
        choices = _answer.decode(body).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return len(body) // _CHARACTERS_PER_TOKEN
    size = 0 if choices else len(body)
    for choice in choices:
        message = choice.message or _Message()
        texts = (choice.text, message.content, message.reasoning_content)
        size += sum(len(text) for text in texts if text) + len(bytes(message.tool_calls))
    return -(-size // _CHARACTERS_PER_TOKEN)


@dataclass(slots=True)
class TokenMeter:
    """Of one request, over all its legs."""

    prompt: int
    """Estimated; exact once somebody counted."""
    expected: int
    """Output tokens charged for while nothing can be seen of them (an answer in one piece)."""
    usage: Usage | None = None
    """The engine's count of the leg that runs or ran last."""
    output: int = 0
    """Output tokens seen in that leg."""
    whole: bool = False
    """The leg has come to its end: the engine's count is its last word."""
    before: int = 0
    """Output tokens that the client has of earlier legs."""
    replayed: bool = False
    """The leg's engine counts `before` as prompt."""
    begun: bool = False
    """A replica has taken the request on."""

    def begin_leg(self, before: int = 0, *, replayed: bool = False) -> None:
        self.usage, self.output, self.whole = None, 0, False
        self.before, self.replayed, self.begun = before, replayed, True

    def refuse(self) -> None:
        """Nothing was computed for it, or nothing came of it: the request costs nothing."""
        self.begun, self.usage = False, None

    @property
    def used(self) -> Usage:
        """What the request has cost so far."""
        usage = self.usage
        if usage is not None:
            if not self.whole:
                # Counts on the way may lag behind what was seen.
                usage = usage_from(usage.prompt_tokens, max(usage.output, self.output), usage.cached)
            if not self.replayed:
                return usage
            return usage_from(max(0, usage.prompt_tokens - self.before), usage.output + self.before, usage.cached)
        if not self.begun:
            return NOTHING_USED
        return usage_from(self.prompt, self.before + self.output, None)
