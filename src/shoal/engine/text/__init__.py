"""Between text and tokens: tokenizer, chat template, incremental decoding, stop strings, tool calls."""

from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.errors import ChatTemplateError, TextError, TokenizerError
from shoal.engine.text.stop import StopMatcher
from shoal.engine.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplateError",
    "IncrementalDetokenizer",
    "StopMatcher",
    "TextError",
    "Tokenizer",
    "TokenizerError",
    "load_tokenizer",
]
