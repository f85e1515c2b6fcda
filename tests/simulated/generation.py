"""One answer of a simulated replica, with a fault drawn at every step."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from simulated.model import answer_to, is_half, prompt_of, text_of

if TYPE_CHECKING:
    from simulated.replica import SimulatedReplica, _Connection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DECODE_SECONDS = 0.02
EARLY = ("reset", "close", "garbage", "hang", "slow", 500, 500, 503, 503, 429)
MIDWAY = ("reset", "close", "garbage", "hang", "slow", "end", "error", "half event")
_HANG_SECONDS = 600.0


class Crashes(Exception):
    """The connection is cut here."""


class Answer:
    """To one POST."""

    def __init__(
        self, replica: "SimulatedReplica", connection: "_Connection", path: str, body: dict[str, Any]
    ) -> None:
        self._replica, self._connection, self._body = replica, connection, body
        self._path = path
        self._chat = path == "/v1/chat/completions"
        self._base = {"id": f"{replica.name}-{replica.generated}", "created": 1, "model": body.get("model")}

    def _fault(self, kinds: tuple[Any, ...]) -> Any:
        replica = self._replica
        if replica.fault_rate and replica.draws.random() < replica.fault_rate:
            kind = replica.draws.choice(kinds)
            replica.journal.note(replica.name, f"fault {kind}")
            return kind
        return None

    async def run(self) -> None:
        replica = self._replica
        if await self._early(self._fault(EARLY)):
            return
        prompt = prompt_of(self._body)
        replica.running += 1
        try:
            hit = replica.hit(prompt)
            replica.prompted += len(prompt) - hit
            await replica.pause((len(prompt) - hit) / 2000)
            output, finish = answer_to(self._body)
            if self._body.get("stream"):
                await self._stream(prompt, hit, output, finish)
            else:
                await self._whole(prompt, hit, output, finish)
        finally:
            replica.running -= 1

    async def _early(self, kind: Any) -> bool:
        """A fault before anything is said; whether that was the answer."""
        connection = self._connection
        if isinstance(kind, int):
            headers = "retry-after: 1\r\n" if kind in (429, 503) else ""
            connection.json(kind, {"error": {"message": f"fault {kind}", "type": "fault", "code": None}}, headers)
            return True
        if kind == "garbage":
            connection.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        if kind == "close":
            connection.transport.close()
            return True
        await self._misbehave(kind)
        return False

    async def _misbehave(self, kind: Any) -> None:
        """Hang, dawdle or cut the connection; nothing otherwise."""
        if kind in ("reset", "garbage"):
            raise Crashes
        if kind == "hang":
            await asyncio.sleep(_HANG_SECONDS)
        if kind == "slow":
            await asyncio.sleep(self._replica.draws.uniform(0.5, 5.0))

    def _usage(self, prompt: list[int], output: list[int], hit: int) -> dict[str, Any]:
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "total_tokens": len(prompt) + len(output),
            "prompt_tokens_details": {"cached_tokens": hit},
        }

    def _whole_body(self, prompt: list[int], hit: int, output: list[int], finish: str) -> dict[str, Any]:
        text = text_of(output)
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        answer = self._base | {"object": "chat.completion" if self._chat else "text_completion"}
        if (self._body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            # What was computed is held for another replica.
            held = {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": self._base["id"]}
            answer["kv_transfer_params"] = held
        answer |= {"choices": [choice], "usage": self._usage(prompt, output, hit)}
        return answer

    async def _whole(self, prompt: list[int], hit: int, output: list[int], finish: str) -> None:
        replica, connection = self._replica, self._connection
        for _ in output:
            await replica.pause(DECODE_SECONDS)
        replica.generated += len(output)
        answer = self._whole_body(prompt, hit, output, finish)
        kind = self._fault((*MIDWAY[:5], "broken json"))
        body = json.dumps(answer).encode()
        if kind == "broken json":
            body = body[: len(body) // 2]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        if kind in ("reset", "close", "hang", "garbage"):
            connection.write(head + body[: replica.draws.randrange(len(body))])
            if kind == "close":
                connection.transport.close()
                return
        await self._misbehave(kind)
        connection.write(head + body)

    async def _stream(self, prompt: list[int], hit: int, output: list[int], finish: str) -> None:
        replica, connection = self._replica, self._connection
        connection.write(HEAD)
        done = sent = len(self._body.get("resume_token_ids") or ())
        first = True
        while first or done < len(output):
            if await self._midway(self._fault(MIDWAY)):
                return
            # Some steps say several tokens; a half character says nothing yet.
            steps = 1 if replica.draws.random() < 0.8 else replica.draws.randint(2, 4)
            if first:
                steps = 1
            for _ in range(min(steps, len(output) - done)):
                await replica.pause(DECODE_SECONDS)
                done += 1
                replica.generated += 1
            last = done == len(output)
            if not last and is_half(output[done - 1]) and done - sent > 1:
                done -= 1
            text = text_of(output[:done])[len(text_of(output[:sent])) :]
            self._event(self._chunk(text, prompt if first else None, output[sent:done], finish if last else None))
            sent, first = done, False
        if await self._midway(self._fault(MIDWAY)):
            return
        if (self._body.get("stream_options") or {}).get("include_usage"):
            self._event({"object": "x", "choices": [], "usage": self._usage(prompt, output, hit)})
        if await self._midway(self._fault(MIDWAY)):
            return
        self._piece(b"data: [DONE]\n\n")
        connection.write(b"0\r\n\r\n")

    async def _midway(self, kind: Any) -> bool:
        """A fault within a stream; whether that was its end."""
        connection = self._connection
        if kind == "end":
            connection.write(b"0\r\n\r\n")
            return True
        if kind == "error":
            self._piece(self._error_event())
            connection.write(b"0\r\n\r\n")
            return True
        if kind == "half event":
            self._piece(b'data: {"choices": [{"inde')
            connection.write(b"0\r\n\r\n")
            return True
        if kind == "garbage":
            connection.write(b"\xff\xfe not a chunk\r\n\r\n\x00")
        if kind == "close":
            connection.transport.close()
            return True
        await self._misbehave(kind)
        return False

    def _error_event(self) -> bytes:
        error = {"message": "engine died", "type": "server_error", "code": 500}
        return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"

    def _chunk(self, text: str, prompt: list[int] | None, tokens: list[int], finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._chat:
            choice["delta"] = ({"role": "assistant"} if prompt is not None else {}) | {"content": text}
        else:
            choice["text"] = text
        chunk: dict[str, Any] = {"object": "chat.completion.chunk" if self._chat else "text_completion"}
        if self._body.get("return_token_ids"):
            choice["token_ids"] = tokens
            if prompt is not None:
                (chunk if self._chat else choice)["prompt_token_ids"] = prompt
        return chunk | {"choices": [choice]}

    def _event(self, value: dict[str, Any]) -> None:
        self._piece(b"data: " + json.dumps(self._base | value, separators=(",", ":")).encode() + b"\n\n")

    def _piece(self, data: bytes) -> None:
        self._connection.write(b"%x\r\n" % len(data) + data + b"\r\n")
