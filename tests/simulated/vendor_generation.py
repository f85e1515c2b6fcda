"""Answers on the Responses and Messages APIs, in their vendors' shapes."""

import json
from typing import Any

from fakes import vendors
from simulated.generation import DECODE_SECONDS, HEAD, MIDWAY, Answer
from simulated.model import text_of

SHAPES = {"/v1/responses": vendors.Responses, "/v1/messages": vendors.Messages}


class VendorAnswer(Answer):
    """With the same faults; nothing of it can be continued."""

    def _shape(self, prompt: list[int], hit: int) -> Any:
        return SHAPES[self._path](self._base["id"], self._base["model"], len(prompt), hit)

    def _whole_body(self, prompt: list[int], hit: int, output: list[int], finish: str) -> dict[str, Any]:
        return self._shape(prompt, hit).whole(text_of(output), len(output))

    async def _stream(self, prompt: list[int], hit: int, output: list[int], finish: str) -> None:
        shape, text, said = self._shape(prompt, hit), text_of(output), ""
        self._connection.write(HEAD)
        for event in shape.opening():
            self._named(event)
        for done in range(1, len(output) + 1):
            if await self._midway(self._fault(MIDWAY)):
                return
            await self._replica.pause(DECODE_SECONDS)
            self._replica.generated += 1
            if len(new := text_of(output[:done])) > len(said):
                self._named(shape.token(new[len(said) :]))
                said = new
        for event in shape.closing(text, len(output)):
            if await self._midway(self._fault(MIDWAY)):
                return
            self._named(event)
        self._connection.write(b"0\r\n\r\n")

    def _error_event(self) -> bytes:
        error = {"type": "error", "error": {"type": "api_error", "message": "engine died"}}
        if self._path == "/v1/responses":
            error = {"type": "error", "message": "engine died", "code": "server_error"}
        return self._as_event(error)

    def _as_event(self, event: dict[str, Any]) -> bytes:
        return b"event: " + event["type"].encode() + b"\ndata: " + json.dumps(event).encode() + b"\n\n"

    def _named(self, event: dict[str, Any]) -> None:
        self._piece(self._as_event(event))
