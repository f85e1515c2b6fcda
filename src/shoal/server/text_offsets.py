"""Where each token begins in the text of a completion (`text_offset`), in characters."""

from collections.abc import Sequence

from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.tokenizer import Tokenizer


class TextOffsets:
    """The offsets of one choice's tokens, as they come.

    A token that the text doesn't show (a special one) begins where the next one does. So do the tokens of one
    character: all but the last are shown only with it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, continues: bool) -> None:
        """`continues`: the text goes on a prompt given as text (see `IncrementalDetokenizer`)."""
        self._tokenizer = tokenizer
        self._output = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, continues=continues
        )
        self._position = 0

    def of_echo(self, tokens: Sequence[int], text: str) -> list[int]:
        """Return the offsets of an echoed prompt, if any; what comes then follows its `text`."""
        if not tokens:
            return []
        shown = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=True)
        offsets = []
        for token in tokens:
            offsets.append(min(self._position, len(text)))
            if token not in self._tokenizer.special_token_ids:
                self._position += len(shown.push((token,)))
                continue
            # Those that the tokenizer put around the text are not in it, those that the client wrote are.
            special = self._tokenizer.token_text(token)
            if special and text.startswith(special, self._position):
                self._position += len(special)
        self._position = len(text)
        return offsets

    def of_output(self, tokens: Sequence[int]) -> list[int]:
        """Return the offsets of the next generated tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._position)
            self._position += len(self._output.push((token,)))
        return offsets
