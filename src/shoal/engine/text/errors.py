"""What can go wrong between text and tokens, as types a server can turn into an answer."""

from shoal.engine.errors import EngineError


class TextError(EngineError):
    """Root of the package's errors; the message is fit for a user."""


class TokenizerError(TextError):
    """A tokenizer cannot be read, or is of a kind this package does not decode."""


class ChatTemplateError(TextError):
    """The model has no chat template, or its template refuses these messages."""
