"""Sizes of requests before an engine has counted them, learned per model from what engines counted."""

_BYTES_PER_TOKEN = 4.0
_OUTPUT_TOKENS = 256.0
_WEIGHT = 0.05
"""Of one observation in a running mean: about the last twenty requests count."""


class TokenEstimator:
    """Estimates tokens of prompts from bytes of their JSON, and tokens of outputs."""

    def __init__(self) -> None:
        self._bytes_per_token: dict[str, float] = {}
        self._output: dict[str, float] = {}

    def prompt_tokens(self, model: str, size: int) -> int:
        """Return the tokens of a prompt of `size` bytes, at least 1."""
        return max(1, int(size / self._bytes_per_token.get(model, _BYTES_PER_TOKEN)))

    def output_tokens(self, model: str, limit: int | None) -> int:
        """Return the output tokens of a request that allows `limit`, at least 1."""
        usual = int(self._output.get(model, _OUTPUT_TOKENS))
        return max(1, usual if limit is None else min(limit, usual))

    def observe(self, model: str, size: int, prompt_tokens: int, output_tokens: int) -> None:
        """Learn from a request that an engine counted. `model` is served, so that this can't grow without bound."""
        if prompt_tokens > 0 and size > 0:
            before = self._bytes_per_token.get(model, size / prompt_tokens)
            self._bytes_per_token[model] = max(0.5, before + _WEIGHT * (size / prompt_tokens - before))
        usual = self._output.get(model, _OUTPUT_TOKENS)
        self._output[model] = max(1.0, usual + _WEIGHT * (output_tokens - usual))
