"""Token ids in, text out, one token at a time, in constant time a token.

A character may be spread over several tokens. What is not yet a whole character is held back, so U+FFFD appears
only for bytes that can never become one. The pieces put together equal the tokenizer's `decode` of all tokens at
once, whatever the split.

    byte level       bytes ─► incremental UTF-8 decoder ─► text
    sentencepiece    text pieces ─► text;  a run of byte tokens is held until it ends, because the tokenizer turns
                     the *whole* run into U+FFFD, one a byte, when it is no valid UTF-8
"""

import codecs
from collections.abc import Iterable

from shoal.engine.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one growing token sequence.

    `continues`: the tokens go on a text (a completion of a prompt) rather than begin one, so that the leading space
    a sentencepiece tokenizer drops at the start of a text is kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues: bool = False) -> None:
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._run = bytearray()
        self._strip_next = self._pieces.strips_leading_space and not continues
        self._join_words = self._pieces.family == "words"
        self._begun = continues

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete; empty while a character is unfinished."""
        if self._pieces.family == "byte_level":
            data = b"".join(self._pieces[i].data for i in ids if i not in self._skipped)
            return self._utf8.decode(data)
        return "".join(self._push_piece(i) for i in ids if i not in self._skipped)

    def flush(self) -> str:
        """The rest at the end of the sequence: what stayed incomplete becomes U+FFFD."""
        if self._pieces.family == "byte_level":
            return self._utf8.decode(b"", final=True)
        return self._emit(self._end_run())

    def _push_piece(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if piece.is_byte:
            self._run += piece.data
            return ""
        text = piece.data.decode("utf-8")
        if self._join_words and text:
            text = f" {text}" if self._begun else text
            self._begun = True
        return self._emit(self._end_run() + text)

    def _end_run(self) -> str:
        if not self._run:
            return ""
        try:
            text = self._run.decode("utf-8")
        except UnicodeDecodeError:
            text = "\N{REPLACEMENT CHARACTER}" * len(self._run)
        self._run.clear()
        return text

    def _emit(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text
