"""Text that arrives in pieces, read by generators that wait where the text ends so far.

A parser written this way reads as if the whole text were there, sees every character once, and cannot depend on
how the text was cut: each decision falls at a character, not at a piece. Pieces are kept in a list and joined once,
so that a long call pushed one character at a time costs time linear in its length.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, str | None, T]
"""Suspended where more text is needed; it is sent the next piece, or None once the text is complete."""

_SPACES = re.compile(r"\s*")


class Malformed(Exception):
    """The text since the mark cannot be what was being read."""


class Unfinished(Malformed):
    """The text ended within what was being read, and no part of it is anything else."""


class TextCursor:
    """A position in growing text. Text since the mark is kept, so that it can be read again."""

    def __init__(self) -> None:
        self.chunk = ""
        self.at = 0
        """Index in `chunk` of the next character to read."""
        self._start = 0
        """Index in `chunk` where the recorded text goes on."""
        self._kept: list[str] = []
        self._kept_length = 0
        self._ended = False

    def mark(self) -> None:
        """Forget what was read; record from here."""
        self._kept.clear()
        self._kept_length = 0
        self._start = self.at

    @property
    def offset(self) -> int:
        """Characters read since the mark."""
        return self._kept_length + self.at - self._start

    def recorded(self) -> str:
        """The text read since the mark."""
        return "".join(self._kept) + self.chunk[self._start : self.at]

    def rewind(self) -> None:
        """Read again from the mark."""
        if self._kept:
            self.chunk = "".join(self._kept) + self.chunk
            self._start = 0
        self.at = self._start
        self.mark()

    def more(self) -> Reading[bool]:
        """Wait for text beyond the chunk; False at the end of the text."""
        while not self._ended:
            piece = yield
            if piece is None:
                self._ended = True
            elif piece:
                if self.at > self._start:
                    self._kept.append(self.chunk[self._start : self.at])
                    self._kept_length += self.at - self._start
                self.chunk = self.chunk[self.at :] + piece
                self.at = self._start = 0
                return True
        return False

    def peek(self) -> Reading[str]:
        """The next character; empty at the end of the text."""
        if self.at == len(self.chunk) and not (yield from self.more()):
            return ""
        return self.chunk[self.at]

    def step(self) -> str:
        """Read the next character of the chunk, if there is one."""
        character = self.chunk[self.at : self.at + 1]
        self.at += len(character)
        return character

    def skip(self, pattern: re.Pattern[str] = _SPACES) -> Reading[str]:
        """Read and return what `pattern`, a repeated set of characters, matches; white space by default."""
        pieces: list[str] = []
        while True:
            match = pattern.match(self.chunk, self.at)
            end = match.end() if match else self.at
            pieces.append(self.chunk[self.at : end])
            self.at = end
            if end < len(self.chunk) or not (yield from self.more()):
                return "".join(pieces)

    def literal(self, text: str) -> Reading[bool]:
        """Whether `text` comes next, which is then read. What it was cut off in at the end is dropped too."""
        while not self.chunk.startswith(text, self.at):
            rest = self.chunk[self.at : self.at + len(text)]
            if not text.startswith(rest):
                return False
            if not (yield from self.more()):
                self.at = len(self.chunk)
                return False
        self.at += len(text)
        return True

    def header(self, stops: str, limit: int) -> Reading[str]:
        """Read up to one of the characters `stops`, to `limit` characters or to the end of the text."""
        characters: list[str] = []
        # The empty string, which is the end of the text, is in every string.
        while len(characters) < limit and (character := (yield from self.peek())) not in stops:
            characters.append(character)
            self.at += 1
        return "".join(characters)

    def until(
        self,
        pattern: re.Pattern[str],
        marks: tuple[str, ...],
        sink: Callable[[str], None],
        *,
        record: bool = False,
    ) -> Reading[str]:
        """Hand text to `sink` up to the first of `marks`, which is read and returned; empty if none comes.

        `pattern` matches exactly the marks. What may be the beginning of one is held back. The cursor's mark moves
        along unless `record` is set.
        """
        while True:
            found = pattern.search(self.chunk, self.at)
            end = found.start() if found else len(self.chunk) - self._pending(marks)
            if end > self.at:
                sink(self.chunk[self.at : end])
            self.at = found.end() if found else end
            if not record:
                self.mark()
            if found:
                return found[0]
            if not (yield from self.more()):
                if self.at < len(self.chunk):
                    sink(self.chunk[self.at :])
                    self.at = len(self.chunk)
                return ""

    def _pending(self, marks: tuple[str, ...]) -> int:
        return max(overlap(self.chunk, mark, len(self.chunk) - self.at) for mark in marks)


def any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that matches exactly `marks`."""
    return re.compile("|".join(re.escape(mark) for mark in marks))


def overlap(text: str, mark: str, most: int) -> int:
    """How many of the `most` last characters of `text` are a proper beginning of `mark`."""
    for length in range(min(most, len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
