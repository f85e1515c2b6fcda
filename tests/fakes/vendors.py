"""What the fake engine answers on the APIs beside chat and completions, in their vendors' shapes."""

from typing import Any

TOOLS = {
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/rerank",
    "/v1/messages/count_tokens",
    "/detokenize",
}
STREAMED = {"/v1/responses", "/v1/messages"}


def prompt_text(body: dict[str, Any]) -> str:
    """The text that a request of any of them is about."""
    parts = (
        body.get(name) for name in ("instructions", "system", "input", "messages", "documents", "text_2", "tokens")
    )
    return "".join(part if isinstance(part, str) else repr(part) for part in parts if part)


def tool_answer(path: str, model: str, prompt: int) -> dict[str, Any]:
    """The whole answer of an API that generates nothing."""
    if path == "/v1/messages/count_tokens":
        return {"input_tokens": prompt}
    if path == "/detokenize":
        return {"prompt": "words"}
    usage = {"prompt_tokens": prompt, "total_tokens": prompt}
    if path == "/v1/embeddings":
        data: list[dict[str, Any]] = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        return {"object": "list", "model": model, "data": data, "usage": usage}
    return {"id": "score-1", "model": model, "data": [{"index": 0, "score": 0.5}], "usage": usage}


class Responses:
    """OpenAI's."""

    def __init__(self, identity: str, model: str, prompt: int, cached: int) -> None:
        self._base = {"id": identity, "object": "response", "model": model, "output": []}
        self._prompt, self._cached = prompt, cached

    def opening(self) -> list[dict[str, Any]]:
        begun = self._base | {"status": "in_progress", "usage": None}
        return [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]

    def token(self, text: str) -> dict[str, Any]:
        return {"type": "response.output_text.delta", "item_id": "m", "delta": text}

    def whole(self, text: str, output: int) -> dict[str, Any]:
        usage = {
            "input_tokens": self._prompt,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": output,
            "total_tokens": self._prompt + output,
        }
        content = [{"type": "output_text", "text": text}]
        item = {"type": "message", "role": "assistant", "content": content}
        return self._base | {"status": "completed", "output": [item], "usage": usage}

    def closing(self, text: str, output: int) -> list[dict[str, Any]]:
        return [{"type": "response.completed", "response": self.whole(text, output)}]


class Messages:
    """Anthropic's."""

    def __init__(self, identity: str, model: str, prompt: int, cached: int) -> None:
        self._base = {"id": identity, "type": "message", "role": "assistant", "model": model}
        self._read = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached}

    def opening(self) -> list[dict[str, Any]]:
        begun = self._base | {"content": [], "usage": self._read | {"output_tokens": 1}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [{"type": "message_start", "message": begun}, {"type": "ping"}, block]

    def token(self, text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def whole(self, text: str, output: int) -> dict[str, Any]:
        usage = self._read | {"output_tokens": output}
        content = [{"type": "text", "text": text}]
        return self._base | {"content": content, "stop_reason": "max_tokens", "usage": usage}

    def closing(self, text: str, output: int) -> list[dict[str, Any]]:
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}},
            {"type": "message_stop"},
        ]
