"""Tool calls in a model's output, in the model family's own notation.

Every family marks its calls in text. A parser is fed the text as it comes and gives back *events*: pieces of
content (`str`) as soon as they cannot be the beginning of a call any more, and calls (`ToolCall`) as soon as they
are whole. What turns out to be no well-formed call comes out as content, unchanged. A mark inside a string of the
arguments is text. The events do not depend on how the text was cut, and the time is linear in its length.

    hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>      Hermes, Qwen, SmolLM2 (also a list)
    qwen_coder   <tool_call><function=name><parameter=key>…</parameter></function></tool_call>   Qwen3-Coder
    seed         the same between <seed:tool_call> and </seed:tool_call>    Seed-OSS
    llama        {"name": …, "parameters": {…}}  or after <|python_tag|>    Llama 3.1 and later
    mistral      [TOOL_CALLS][{"name": …, "arguments": {…}}]  or  [TOOL_CALLS]name[ARGS]{…}
    pythonic     ```tool_code⏎name(key=value)⏎```                           Gemma
    deepseek     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…<｜tool▁calls▁end｜>
    harmony      <|channel|>commentary to=functions.name …<|message|>{…}    gpt-oss
"""

from typing import Literal, Protocol

from shoal.engine.text.cursor import Malformed, Reading, TextCursor, Unfinished, any_of
from shoal.engine.text.tool_bodies import (
    SEPARATORS,
    Body,
    deepseek_body,
    hermes_body,
    llama_body,
    mistral_body,
    pythonic_body,
)
from shoal.engine.text.tool_events import Event, EventParser, EventSink, Reasoning
from shoal.engine.text.tool_harmony import read_harmony
from shoal.engine.text.tool_json import ToolCall, calls_of, read_json
from shoal.engine.text.tool_xml import Schemas

__all__ = [
    "Event",
    "Reasoning",
    "ToolCall",
    "ToolFormat",
    "ToolParser",
    "needs_special_tokens",
    "tool_format_of",
    "tool_parser",
]

ToolFormat = Literal["hermes", "qwen_coder", "seed", "llama", "mistral", "pythonic", "deepseek", "harmony"]


class ToolParser(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Event]:
        """What is certain after more of the text."""

    def flush(self) -> list[Event]:
        """The rest, once the text is complete."""


_OPENERS: dict[ToolFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    # Its models leave out the first mark at times.
    "qwen_coder": ("<tool_call>", "<function="),
    "seed": ("<seed:tool_call>",),
    "llama": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "pythonic": ("```tool_code",),
    "deepseek": ("<｜tool▁calls▁begin｜>",),
}


def _body(tool_format: ToolFormat, schemas: Schemas) -> Body:
    match tool_format:
        case "hermes" | "qwen_coder":
            return hermes_body("</tool_call>", schemas)
        case "seed":
            return hermes_body("</seed:tool_call>", schemas)
        case "llama":
            return llama_body
        case "mistral":
            return mistral_body
        case "pythonic":
            return pythonic_body
        case _:
            return deepseek_body


_MARKS: tuple[tuple[str, ToolFormat], ...] = (
    ("<|channel|>", "harmony"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama"),
    ("<seed:tool_call>", "seed"),
    ("<parameter=", "qwen_coder"),
    ("<tool_call>", "hermes"),
    ("tool_code", "pythonic"),
)
_BY_MODEL_TYPE: dict[str, ToolFormat] = {
    "gpt_oss": "harmony",
    "deepseek_v3": "deepseek",
    "mistral": "mistral",
    "mixtral": "mistral",
    "gemma2": "pythonic",
    "gemma3": "pythonic",
    "gemma3_text": "pythonic",
}


def tool_format_of(chat_template: str | None, model_type: str = "") -> ToolFormat:
    """The notation a model writes: what its chat template shows, else its family's, else `hermes`.

    `hermes` is also what `tool_prompt` asks of a model whose template knows no tools.
    """
    for mark, name in _MARKS:
        if chat_template and mark in chat_template:
            return name
    # Some Llama 3 templates spell out the JSON form and leave the tag to the tokenizer.
    if chat_template and '"parameters":' in chat_template and "<|start_header_id|>" in chat_template:
        return "llama"
    return _BY_MODEL_TYPE.get(model_type, "hermes")


def needs_special_tokens(tool_format: ToolFormat) -> bool:
    """Whether the notation's marks are special tokens, which decoding must then not skip."""
    return tool_format not in ("hermes", "qwen_coder", "pythonic")


def tool_parser(tool_format: ToolFormat, schemas: Schemas | None = None) -> ToolParser:
    """A parser for one answer. `schemas` of the tools' arguments give types where the notation writes bare text."""
    if tool_format == "harmony":
        return EventParser(read_harmony)
    openers, body = _OPENERS[tool_format], _body(tool_format, schemas or {})

    def read(cursor: TextCursor, sink: EventSink) -> Reading[None]:
        if tool_format == "llama":
            yield from _read_bare_calls(cursor, sink)
        yield from _read_sections(cursor, sink, openers, body)

    return EventParser(read)


def _read_sections(cursor: TextCursor, sink: EventSink, openers: tuple[str, ...], body: Body) -> Reading[None]:
    """Content with sections of calls, each after one of `openers`."""
    pattern = any_of(openers)
    while opener := (yield from cursor.until(pattern, openers, sink.content)):
        called = False

        def emit(calls: list[ToolCall]) -> None:
            nonlocal called
            called = True
            sink.calls(calls)
            cursor.mark()

        try:
            done = yield from body(cursor, emit, opener)
            rest = "" if done else cursor.recorded()
        except Unfinished:
            done, rest = False, cursor.recorded()
        except Malformed:
            # The text behind the mark is read anew, for it may hold another one.
            done, rest = False, ""
            cursor.rewind()
        if not called and not done:
            sink.content(opener + rest)
        elif rest:
            sink.content(rest)


def _read_bare_calls(cursor: TextCursor, sink: EventSink) -> Reading[None]:
    """Llama writes calls as the whole answer, without a mark; what else comes is left for sections."""
    try:
        while True:
            cursor.mark()
            yield from cursor.skip()
            if (yield from cursor.peek()) != "{" or (calls := calls_of((yield from read_json(cursor)))) is None:
                break
            sink.calls(calls)
            yield from cursor.skip(SEPARATORS)
    except Malformed:
        pass
    cursor.rewind()
