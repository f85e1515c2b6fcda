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


def usage_from(prompt: int, output: int, cached: int | None) -> Usage:
    return Usage(prompt, output, _Details(cached) if cached is not None else None)


def estimate_tokens(characters: int) -> int:
    """Tokens of the text in one event: most engines send one token per event, some several at a time."""
    if characters <= _SINGLE_CHARACTERS:
        return 1 if characters else 0
    return characters // _CHARACTERS_PER_TOKEN


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None


class _Answer(msgspec.Struct):
    usage: Usage | None = None
    choices: list[_Choice] = []


class _Counted(msgspec.Struct, frozen=True):
    usage: Usage | None = None


_counted = msgspec.json.Decoder(_Counted)
_answer = msgspec.json.Decoder(_Answer)


def usage_of(data: bytes) -> Usage | None:
    """The usage in a JSON body or event payload; None if there is none."""
    try:
        return _counted.decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def output_estimate(body: bytes) -> int:
    """Output tokens of a whole answer whose engine doesn't count, by the size of its text."""
    try:
        choices = _answer.decode(body).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return len(body) // _CHARACTERS_PER_TOKEN
    size = 0
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
    before: int = 0
    """Output tokens that the client has of earlier legs."""
    replayed: bool = False
    """The leg's engine counts `before` as prompt."""
    begun: bool = False
    """A replica has taken the request on."""

    def begin_leg(self, before: int = 0, *, replayed: bool = False) -> None:
        self.usage, self.output, self.before, self.replayed, self.begun = None, 0, before, replayed, True

    def refuse(self) -> None:
        """Its replica says that the request is wrong: nothing was computed."""
        self.begun = False

    @property
    def used(self) -> Usage:
        """What the request has cost so far."""
        usage = self.usage
        if usage is not None:
            if not self.replayed:
                return usage
            return usage_from(max(0, usage.prompt_tokens - self.before), usage.output + self.before, usage.cached)
        if not self.begun:
            return usage_from(0, 0, None)
        return usage_from(self.prompt, self.before + self.output, None)
