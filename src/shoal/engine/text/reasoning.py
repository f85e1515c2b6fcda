"""A model's own reasoning at the beginning of an answer, told apart from the content by the family's marks.

    <think>…</think>             Qwen3, DeepSeek-R1 and most others
    [THINK]…[/THINK]             Magistral
    <seed:think>…</seed:think>   Seed-OSS
    <|channel>thought⏎…<channel|>   Gemma 4
    Here is my thought process: … Here is my response:   Granite 3.2

gpt-oss's channels are read with its tool calls (`tool_harmony`). Some templates open the reasoning themselves at
the end of the prompt: then the answer begins inside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from shoal.engine.text.cursor import Reading, TextCursor, any_of
from shoal.engine.text.tool_events import GrowingText, Reasoning

ReasoningMode = Literal["auto", "none"]
"""`auto`: reasoning is a field of its own; `none`: it stays in the content, marks included."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What a family writes before and after its reasoning."""

    opener: str
    closer: str


THINK = ReasoningMarks("<think>", "</think>")
_BY_TEMPLATE: tuple[tuple[str, ReasoningMarks], ...] = (
    ("<seed:think>", ReasoningMarks("<seed:think>", "</seed:think>")),
    ("[THINK]", ReasoningMarks("[THINK]", "[/THINK]")),
    ("<|channel>", ReasoningMarks("<|channel>thought\n", "<channel|>")),
    ("</think>", THINK),
    ("<think>", THINK),
    ("Here is my thought process", ReasoningMarks("Here is my thought process:", "Here is my response:")),
)


def reasoning_marks_of(chat_template: str | None, has_token: Callable[[str], bool]) -> ReasoningMarks | None:
    """The marks that the chat template shows, or that are tokens of their own; None for a model without any."""
    for sign, marks in _BY_TEMPLATE:
        if chat_template and sign in chat_template:
            return marks
    return THINK if has_token(THINK.opener) and has_token(THINK.closer) else None


def begins_inside(marks: ReasoningMarks, prompt_end: str) -> bool:
    """Whether the prompt, of which this is the end, has opened the reasoning."""
    return prompt_end.rstrip().endswith(marks.opener.rstrip())


def left_open(marks: ReasoningMarks, text: str) -> bool:
    """Whether reasoning begins in a text and doesn't end there."""
    return text.rfind(marks.opener) > text.rfind(marks.closer)


class ReasoningSplitter(GrowingText[str | Reasoning]):
    """Splits one growing answer. White space around the reasoning is layout and is dropped.

    Reasoning is looked for at the beginning only: an answer that mentions a mark further on is left alone.
    `verbatim` keeps marks and white space in the reasoning's text, so that the pieces add up to the answer.
    """

    def __init__(self, marks: ReasoningMarks, *, inside: bool = False, verbatim: bool = False) -> None:
        self._pieces: list[str | Reasoning] = []
        super().__init__(self._read(TextCursor(), marks, inside, verbatim), self._take_pieces)

    def _take_pieces(self) -> list[str | Reasoning]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self, cursor: TextCursor, marks: ReasoningMarks, inside: bool, verbatim: bool) -> Reading[None]:
        cursor.mark()
        yield from cursor.skip()
        if not (yield from cursor.literal(marks.opener)):
            cursor.rewind()
        elif verbatim:
            self._reason(cursor.recorded())
        if inside or cursor.offset:
            yield from self._read_reasoning(cursor, marks.closer, verbatim)
            if not verbatim:
                yield from cursor.skip()
        while (yield from cursor.peek()):
            self._pieces.append(cursor.chunk[cursor.at :])
            cursor.at = len(cursor.chunk)
            cursor.mark()

    def _read_reasoning(self, cursor: TextCursor, closer: str, verbatim: bool) -> Reading[None]:
        if not verbatim:
            yield from cursor.skip()
        held: list[str] = []

        def show(text: str) -> None:
            """Hold back white space, which may be the last."""
            kept = text if verbatim else text.rstrip()
            if kept:
                self._reason("".join([*held, kept]))
                held.clear()
            if len(kept) < len(text):
                held.append(text[len(kept) :])

        found = yield from cursor.until(any_of((closer,)), (closer,), show)
        if verbatim and found:
            self._reason(found)

    def _reason(self, text: str) -> None:
        self._pieces.append(Reasoning(text))


class ReasoningCounter(Protocol):
    """Counts the reasoning tokens of one answer."""

    tokens: int

    def add(self, ids: Sequence[int]) -> None:
        """Take more of the answer's tokens."""


class MarkCounter:
    """Counts the tokens between two marks, each of which is one token."""

    def __init__(self, opener: int, closer: int, *, inside: bool) -> None:
        self._opener, self._closer = opener, closer
        self._inside = inside
        self._ended = False
        self.tokens = 0

    def add(self, ids: Sequence[int]) -> None:
        for token in ids:
            if self._ended:
                return
            if token == self._closer:
                self._ended = True
            elif token == self._opener:
                self._inside = True
            elif self._inside:
                self.tokens += 1


class ChannelCounter:
    """Counts the tokens of gpt-oss's analysis messages, whose headers are read with `decode`."""

    def __init__(self, message: int, ends: frozenset[int], decode: Callable[[Sequence[int]], str]) -> None:
        """`message` is the token between header and body; `ends` end a body."""
        self._message, self._ends, self._decode = message, ends, decode
        self._header: list[int] = []
        self._in_body = False
        self._counts = False
        self.tokens = 0

    def add(self, ids: Sequence[int]) -> None:
        for token in ids:
            if token in self._ends:
                self._in_body, self._header = False, []
            elif self._in_body:
                self.tokens += self._counts
            elif token == self._message:
                self._in_body, self._counts = True, self._decode(self._header).lstrip().startswith("analysis")
            else:
                self._header.append(token)
