"""What one token contributes to the text, for the two families of decoders that language models use.

*Byte level* (GPT-2 and after): a token is a string over 256 printable stand-ins, one a byte. *Sentencepiece* (Llama
2, Gemma): a token is text with `▁` for a space, plus 256 tokens `<0x00>` … `<0xFF>` for bytes no piece covers.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

from shoal.engine.errors import TokenizerError

Family = Literal["byte_level", "sentencepiece", "words"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token's share of the text."""

    data: bytes
    is_byte: bool = False
    """A sentencepiece byte token: it makes text only together with its neighbours."""


def byte_stand_ins() -> dict[str, int]:
    """The printable character that GPT-2's vocabulary writes for each byte.

    Printable Latin-1 bytes stand for themselves; the other 68 are numbered upwards from U+0100.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


class TokenPieces:
    """Token id → `Piece`, made on first use. Also says which decoder family the tokenizer is of."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Raises `TokenizerError` for a decoder of another kind."""
        self._tokenizer = tokenizer
        self._stand_ins = byte_stand_ins()
        self._cache: dict[int, Piece] = {}
        self._replacements: list[tuple[str, str]] = []
        self._byte_fallback = False
        self.strips_leading_space = False
        """The decoder drops one space at the very start of the text."""
        # Its pickled state is the decoder's JSON; the whole tokenizer's takes a second to parse for 260 k tokens.
        decoder = tokenizer.decoder
        self.family: Family = self._read_decoder(json.loads(decoder.__getstate__()) if decoder else None)

    def _read_decoder(self, decoder: dict[str, Any] | None) -> Family:
        if decoder is None:
            return "words"
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return "byte_level"
        fused = False
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if not fused:
                    self._replacements.append((pattern, content))
                case {"type": "ByteFallback"} if not fused:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                    self.strips_leading_space = True
                case _:
                    raise TokenizerError(
                        f"the tokenizer's decoder {' + '.join(kinds)} is of no supported kind "
                        "(ByteLevel, or Replace + ByteFallback + Fuse as of sentencepiece)"
                    )
        return "sentencepiece"

    def __getitem__(self, token_id: int) -> Piece:
        """The piece of any id; one outside the vocabulary contributes nothing."""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._make(token_id)
        return piece

    def _make(self, token_id: int) -> Piece:
        token: str | None = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            # As decoding skips it, it does not even end a run of byte tokens.
            return Piece(b"", is_byte=True)
        if self.family == "byte_level":
            # A token with a character outside the alphabet (an added token with a space) is plain text.
            stand_ins = [self._stand_ins.get(character) for character in token]
            data = bytes(b for b in stand_ins if b is not None)
            return Piece(data if len(data) == len(token) else token.encode())
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return Piece(bytes([int(token[3:5], 16)]), is_byte=True)
            except ValueError:
                pass
        return Piece(token.encode())
