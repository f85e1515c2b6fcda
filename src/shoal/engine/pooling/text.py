"""Texts and pairs of texts to token ids, with what the tokenizer puts around them."""

from pathlib import Path

import tokenizers

from shoal.engine.errors import TokenizerError
from shoal.engine.pooling.model import TokenSequence


class TextTooLong(ValueError):
    """A text of more tokens than asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(f"{length} tokens")
        self.length = length


class TextEncoder:
    """A fast tokenizer without padding or truncation. Thread-safe."""

    def __init__(self, path: Path, *, lower_case: bool = False) -> None:
        """Raises TokenizerError where the directory has no tokenizer.json that loads."""
        file = path / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{path} has no tokenizer.json")
        try:
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain `Exception`
            raise TokenizerError(f"the tokenizer does not load: {error}") from error
        # Both are often in the file, made for batches of equal length.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._lower = lower_case

    def encode(
        self, text: str, pair: str | None = None, limit: int | None = None, longest: int | None = None
    ) -> TokenSequence:
        """Token ids, at most `limit` where that is given: cut from the end of the text, special tokens kept.

        Of a pair the second text is cut, then the first. Raises TextTooLong above `longest` tokens.
        """
        if self._lower:
            text, pair = text.lower(), None if pair is None else pair.lower()
        parts = [text] if pair is None else [text, pair]
        # Unlike `encode`, this call releases the GIL.
        encoded = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        first, second = encoded[0], encoded[1] if len(encoded) > 1 else None
        length = sum(map(len, encoded)) + self._tokenizer.num_special_tokens_to_add(second is not None)
        if limit is None and longest is not None and length > longest:
            # Before ids are made, which for millions of them takes a while and the GIL.
            raise TextTooLong(length)
        if limit is not None:
            room = max(0, limit - self._tokenizer.num_special_tokens_to_add(second is not None))
            if second is not None:
                second.truncate(max(0, min(len(second.ids), room - len(first.ids))))
                room -= len(second.ids)
            first.truncate(min(len(first.ids), room))
        whole = self._tokenizer.post_process(first, second, True)
        return TokenSequence(tuple(whole.ids), tuple(whole.type_ids))
