"""Tool calls in a model's output, in the model family's own notation.

Every family marks its calls in text. A parser is fed the text as it comes and gives back *events*: pieces of
content (`str`) as soon as they cannot be the beginning of a call any more, and calls (`ToolCall`) as soon as they
are whole. What turns out to be no well-formed call comes out as content, unchanged. The content put together and
the calls do not depend on how the text was cut.

    hermes     <tool_call>{"name": …, "arguments": {…}}</tool_call>      Hermes, Qwen, SmolLM2 (also a list)
    llama      {"name": …, "parameters": {…}}  or after <|python_tag|>    Llama 3.1 and later
    mistral    [TOOL_CALLS][{"name": …, "arguments": {…}}]  or  [TOOL_CALLS]name[ARGS]{…}
    pythonic   ```tool_code⏎name(key=value)⏎```                           Gemma
    deepseek   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…<｜tool▁calls▁end｜>
    harmony    <|channel|>commentary to=functions.name …<|message|>{…}    gpt-oss
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shoal.engine.text.tool_bodies import (
    JsonScanner,
    ToolCall,
    deepseek_calls,
    hermes_calls,
    llama_calls,
    mistral_calls,
    overlap,
    pythonic_calls,
)
from shoal.engine.text.tool_harmony import HarmonyParser

ToolFormat = Literal["hermes", "llama", "mistral", "pythonic", "deepseek", "harmony"]
Event = str | ToolCall


class ToolParser(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Event]:
        """What is certain after more of the text."""

    def flush(self) -> list[Event]:
        """The rest, once the text is complete."""


@dataclass(frozen=True, slots=True)
class _Section:
    """How a family delimits calls. `closer` None: a section reaches to the end of the text."""

    opener: str
    closer: str | None
    parse: Callable[[str], list[ToolCall] | None]


_SECTIONS = {
    "hermes": _Section("<tool_call>", "</tool_call>", hermes_calls),
    "llama": _Section("<|python_tag|>", None, llama_calls),
    "mistral": _Section("[TOOL_CALLS]", None, mistral_calls),
    "pythonic": _Section("```tool_code", "```", pythonic_calls),
    "deepseek": _Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls),
}

_MARKS: tuple[tuple[str, ToolFormat], ...] = (
    ("<|channel|>", "harmony"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama"),
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
    return tool_format not in ("hermes", "pythonic")


def tool_parser(tool_format: ToolFormat) -> ToolParser:
    """A parser for one answer."""
    if tool_format == "harmony":
        return HarmonyParser()
    sections = _SectionParser(_SECTIONS[tool_format])
    return _LlamaParser(sections) if tool_format == "llama" else sections


def parse_tool_calls(tool_format: ToolFormat, text: str) -> tuple[str, list[ToolCall]]:
    """Content and calls of a whole answer."""
    parser = tool_parser(tool_format)
    events = parser.push(text) + parser.flush()
    content = "".join(event for event in events if isinstance(event, str))
    return content, [event for event in events if isinstance(event, ToolCall)]


class _SectionParser:
    """Content with delimited sections of calls. White space next to a section of calls is layout, not content."""

    def __init__(self, section: _Section) -> None:
        self._section = section
        self._buffer = ""
        self._space = ""
        """White space right before the section being read."""
        self._inside = False
        self._after_calls = False
        """Nothing but white space has come since the last section of calls."""

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._leave_section(events) if self._inside else self._enter_section(events):
            pass
        return events

    def flush(self) -> list[Event]:
        events: list[Event] = []
        if self._inside:
            # Cut off, or the closing mark was the token that ended the answer: whole calls count all the same.
            self._finish(self._buffer, "", events)
        elif not (self._after_calls and self._buffer.isspace()):
            self._content(self._buffer, events)
        self._buffer = ""
        return events

    def _enter_section(self, events: list[Event]) -> bool:
        opener = self._section.opener
        at = self._buffer.find(opener)
        if at < 0:
            shown = len(self._buffer) - overlap(self._buffer, opener)
            # White space before a call is dropped with it, so it waits for what follows.
            shown = len(self._buffer[:shown].rstrip())
            self._content(self._buffer[:shown], events)
            self._buffer = self._buffer[shown:]
            return False
        before = self._buffer[:at]
        kept = before.rstrip()
        self._content(kept, events)
        self._space = before[len(kept) :]
        self._buffer = self._buffer[at + len(opener) :]
        self._inside = True
        return True

    def _leave_section(self, events: list[Event]) -> bool:
        closer = self._section.closer
        at = self._buffer.find(closer) if closer is not None else -1
        if closer is None or at < 0:
            return False
        body, self._buffer = self._buffer[:at], self._buffer[at + len(closer) :]
        self._finish(body, closer, events)
        return True

    def _finish(self, body: str, closer: str, events: list[Event]) -> None:
        self._inside = False
        calls = self._section.parse(body)
        if calls:
            events.extend(calls)
            self._after_calls = True
        else:
            self._content(f"{self._space}{self._section.opener}{body}{closer}", events)

    def _content(self, text: str, events: list[Event]) -> None:
        if self._after_calls:
            text = text.lstrip()
        if text:
            self._after_calls = False
            events.append(text)


class _LlamaParser:
    """Llama writes a call as the whole answer, bare; or anywhere after `<|python_tag|>`."""

    def __init__(self, sections: _SectionParser) -> None:
        self._sections = sections
        self._space = ""
        """White space before what may be a bare call."""
        self._start = ""
        self._bare = True
        """The answer so far is bare calls, or the beginning of one."""
        self._calls = 0
        self._scanner = JsonScanner()

    def push(self, text: str) -> list[Event]:
        if not self._bare:
            return self._sections.push(text)
        self._start += text
        events: list[Event] = []
        while self._take_bare(events):
            pass
        return events

    def flush(self) -> list[Event]:
        events = self._leave_bare() if self._bare else []
        return events + self._sections.flush()

    def _take_bare(self, events: list[Event]) -> bool:
        """Read one bare call from the start; False when more text is needed or none can be there."""
        # Several calls are separated by semicolons or white space.
        rest = self._start.lstrip("; \t\r\n" if self._calls else None)
        self._space += self._start[: len(self._start) - len(rest)]
        self._start = rest
        if not rest:
            return False
        if rest[0] == "{":
            end = self._scanner.end(rest)
            if end is None:
                return False
            self._scanner = JsonScanner()
            if calls := llama_calls(rest[:end]):
                events.extend(calls)
                self._calls += len(calls)
                self._space, self._start = "", rest[end:]
                return True
        events.extend(self._leave_bare())
        return False

    def _leave_bare(self) -> list[Event]:
        """What is left is no call: hand it to the other form's parser."""
        self._bare = False
        return self._sections.push(self._start if self._calls else self._space + self._start)
