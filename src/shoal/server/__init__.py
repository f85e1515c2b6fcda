"""One replica's OpenAI-compatible HTTP endpoint."""
