"""How few tokens a text can have, by its length alone: enough to refuse a hopeless prompt without tokenizing it."""

import json
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from shoal.engine.text.pieces import byte_stand_ins

_NFC_SHRINK = 4
"""Composing characters makes a text shorter in bytes by at most this factor."""
_PIECE_CHARACTERS = 2**18
_KEEPING_NORMALIZERS = {"NFC": _NFC_SHRINK, "NFD": 1, "Prepend": 1}
_KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits")


@dataclass(frozen=True, slots=True)
class LengthBound:
    """Counts the bytes of a text that must end up in a token, and how many of them one token can take."""

    max_token_bytes: int
    dropped: bytes
    """Bytes for which the vocabulary has no token: the tokenizer leaves them out."""

    @property
    def keeps_assigned(self) -> bool:
        """Whether it drops nothing but control characters, and bytes of characters that are not assigned."""
        return all(byte < ord(" ") or byte in b"\xc0\xc1" or byte > 0xF0 for byte in self.dropped)

    def min_tokens(self, text: str, enough: int) -> int:
        """A lower bound for `text`; for so much of it as needs `enough`, where it is longer.

        Piece by piece: encoding a long text holds the GIL all the while.
        """
        kept = 0
        for start in range(0, len(text), _PIECE_CHARACTERS):
            # Surrogates have no UTF-8; the tokenizer would refuse the text, so any count does.
            data = text[start : start + _PIECE_CHARACTERS].encode("utf-8", "replace")
            kept += len(data.translate(None, self.dropped)) if self.dropped else len(data)
            if kept > (enough - 1) * self.max_token_bytes:
                break
        return -(-kept // self.max_token_bytes)


def length_bound(tokenizer: tokenizers.Tokenizer) -> LengthBound | None:
    """The bound that holds for a tokenizer; None where one token may stand for any number of bytes.

    None for tokenizers that drop characters or white space, or whose added tokens absorb the white space around
    them. Reads the vocabulary: some 50 ms for 50,000 tokens.
    """
    shrink = _normalizer_shrink(_state(tokenizer.normalizer))
    model = tokenizer.model
    if shrink is None or not isinstance(model, models.BPE) or not _keeps_all(_state(tokenizer.pre_tokenizer)):
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    byte_level = not model.byte_fallback
    dropped: list[int] = []
    if byte_level:
        cuts_to_bytes = '"ByteLevel"' in json.dumps(_state(tokenizer.pre_tokenizer))
        if not cuts_to_bytes or (model.unk_token is not None and model.fuse_unk):
            return None
        dropped = [byte for c, byte in byte_stand_ins().items() if tokenizer.token_to_id(c) is None]
    longest = max((len(token.content.encode()) for token in added), default=1)
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=False)):
        token = tokenizer.id_to_token(token_id)
        if token is not None:
            longest = max(longest, len(token) if byte_level else len(token.encode()))
    return LengthBound(longest * shrink, bytes(dropped))


def _state(part: Any) -> dict[str, Any] | None:
    state: dict[str, Any] | None = json.loads(part.__getstate__()) if part is not None else None
    return state


def _normalizer_shrink(state: dict[str, Any] | None) -> int | None:
    """The factor by which a normalizer can shorten a text, in bytes; None: it may drop any part of it."""
    if state is None:
        return 1
    match state:
        case {"type": "Sequence", "normalizers": list(steps)}:
            factor = 1
            for step in steps:
                inner = _normalizer_shrink(step)
                if inner is None:
                    return None
                factor *= inner
            return factor
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return 1 if len(content.encode()) >= len(pattern.encode()) else None
    return _KEEPING_NORMALIZERS.get(state["type"])


def _keeps_all(state: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer cuts a text without dropping any of it."""
    if state is None:
        return True
    if state["type"] == "Sequence":
        return all(_keeps_all(step) for step in state["pretokenizers"])
    if state["type"] in ("Split", "Punctuation"):
        return bool(state["behavior"] != "Removed")
    return state["type"] in _KEEPING_PRE_TOKENIZERS
