"""How the answers to one request are to be read, decided once before it is generated.

tool_choice     the text is
none            content
auto            content, and calls in the notation of the model's family (engine.text.tools)
required        a guided JSON list of calls
one named       the guided JSON of the function's arguments

A guided answer is what the guide says, whatever marks its strings hold. Any other may begin with reasoning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.engine.frontend import Frontend
from shoal.engine.text.reasoning import (
    THINK,
    ChannelCounter,
    MarkCounter,
    ReasoningCounter,
    ReasoningMarks,
    ReasoningSplitter,
    begins_inside,
    left_open,
)
from shoal.engine.text.tokenizer import Tokenizer
from shoal.engine.text.tool_xml import Schemas
from shoal.engine.text.tools import ToolFormat, needs_special_tokens, tool_parser
from shoal.server.protocol import ChatRequest, NamedToolChoice
from shoal.server.readers import (
    FamilyReader,
    NamedReader,
    PlainReader,
    Reader,
    ReasoningReader,
    ReasoningShow,
)
from shoal.server.required_reader import RequiredReader
from shoal.server.tool_choice import active_tools

_PROMPT_END = 32
"""Tokens at the end of a prompt that may open the reasoning."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Makes readers of choices, all alike."""

    named: str | None
    """The one function whose arguments the text is."""
    required: bool
    """The text is a list of calls."""
    notation: ToolFormat | None
    """The notation whose marks the answer is searched for; None: the text is taken as it is."""
    schemas: Schemas
    at_most_one: bool
    marks: ReasoningMarks | None
    """None: reasoning isn't looked for, or it is the notation's own affair."""
    show: ReasoningShow
    inside: bool
    """The prompt has opened the reasoning."""
    counter: Callable[[], ReasoningCounter] | None
    """Makes a counter of one choice's reasoning tokens; None where they can't be counted."""
    keeps_special_tokens: bool
    """Marks are special tokens: skipped, nobody could find them."""

    def reader(self) -> Reader:
        """A reader of one choice."""
        if self.marks is None:
            return self._reader()
        splitter = ReasoningSplitter(self.marks, inside=self.inside, verbatim=self.show == "content")
        return ReasoningReader(splitter, self._reader(), self.show)

    def _reader(self) -> Reader:
        if self.named is not None:
            return NamedReader(self.named)
        if self.required:
            return RequiredReader()
        if self.notation is None:
            return PlainReader()
        parser = tool_parser(self.notation, self.schemas)
        return FamilyReader(parser, at_most_one=self.at_most_one, show=self.show)


def answer_format(frontend: Frontend, body: ChatRequest, prompt: Sequence[int], *, guided: bool) -> AnswerFormat:
    """The format of the answers to `body`, whose conversation was rendered as `prompt`."""
    tokenizer, tools = frontend.tokenizer, active_tools(body)
    notation: ToolFormat | None = None
    marks: ReasoningMarks | None = None
    show: ReasoningShow = "apart" if frontend.reasoning == "auto" else "content"
    if not guided:
        family = tokenizer.tool_format(frontend.spec.model_type)
        # Harmony's channels are in every answer, tools or not.
        notation = family if tools or family == "harmony" else None
        marks = None if notation == "harmony" else tokenizer.reasoning_marks
    if notation == "harmony" and show == "content":
        show = "drop"
    elif marks is None and notation not in (None, "harmony"):
        # A model that isn't known to reason: what it thinks is content, but nothing it thinks of is called.
        marks, show = THINK, "content"
    if body.include_reasoning is False and show == "apart":
        show = "drop"
    ids = None if marks is None else _mark_tokens(tokenizer, marks)
    inside = marks is not None and _inside(tokenizer, body, prompt, marks)
    special = ids is not None and not tokenizer.special_token_ids.isdisjoint(ids)
    return AnswerFormat(
        named=body.tool_choice.function.name if isinstance(body.tool_choice, NamedToolChoice) else None,
        required=body.tool_choice == "required",
        notation=notation,
        schemas={tool.function.name: tool.function.parameters or {} for tool in tools},
        at_most_one=body.parallel_tool_calls is False,
        marks=marks,
        show=show,
        inside=inside,
        counter=_channel_counter(tokenizer) if notation == "harmony" else _mark_counter(ids, inside=inside),
        keeps_special_tokens=special or (notation is not None and needs_special_tokens(notation)),
    )


def _mark_tokens(tokenizer: Tokenizer, marks: ReasoningMarks) -> tuple[int, int] | None:
    # Gemma's opening mark is a token and a word.
    opener, closer = tokenizer.token_id(marks.opener.removesuffix("thought\n")), tokenizer.token_id(marks.closer)
    return None if opener is None or closer is None else (opener, closer)


def _mark_counter(ids: tuple[int, int] | None, *, inside: bool) -> Callable[[], ReasoningCounter] | None:
    return None if ids is None else lambda: MarkCounter(*ids, inside=inside)


def _channel_counter(tokenizer: Tokenizer) -> Callable[[], ReasoningCounter] | None:
    message, *ends = (tokenizer.token_id(f"<|{mark}|>") for mark in ("message", "channel", "start", "end", "call"))
    if message is None:
        return None
    known = frozenset(token for token in ends if token is not None)
    return lambda: ChannelCounter(message, known, tokenizer.decode)


def _inside(tokenizer: Tokenizer, body: ChatRequest, prompt: Sequence[int], marks: ReasoningMarks) -> bool:
    if body.continue_final_message:
        content = body.messages[-1].content
        text = content if isinstance(content, str) else "".join(part.text or "" for part in content or ())
        return left_open(marks, text)
    return begins_inside(marks, tokenizer.decode(prompt[-_PROMPT_END:], skip_special_tokens=False))
