"""What a stream has said so far, token by token, so that another replica can go on where it broke off.

Where that is exact is decided in `policy.continuation`. The gateway goes on at another engine only where
`continue_across_engines` allows it.

Never for several choices, guided output, tools, echoes, reasoning or log-probabilities: their state is not in the
tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.fleet.gateway.body import Ask, Parsed, given, with_fields
from shoal.fleet.gateway.formats import Chunk
from shoal.fleet.gateway.reading import StreamReader
from shoal.fleet.gateway.usage import Usage
from shoal.fleet.registry import ReplicaHandle
from shoal.http.sse import DONE
from shoal.policy.continuation import NO_MODES, Mode, continuation_modes, is_at_limit, mode_at, tokens_left

# Sampling fields that mean the same for a prompt that contains the output so far.
_CARRIED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "logit_bias",
    "ignore_eos",
    "stop_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "priority",
    "cache_salt",
    "user",
)


_encode = msgspec.json.Encoder().encode


def modes_for(parsed: Parsed, handle: ReplicaHandle) -> frozenset[Mode]:
    """How a stream that starts on this replica could be continued; none: not exactly."""
    ask = parsed.ask
    if (
        not parsed.streams
        or not parsed.api.chunked
        or not handle.returns_token_ids
        or (ask.n or 1) != 1
        or (ask.best_of or 1) != 1
        or ask.echo
        or parsed.guided
        or given(ask.tools)
        or given(ask.prompt_logprobs)
        or given(ask.resume_token_ids)
        or (given(ask.logprobs) and bytes(ask.logprobs) != b"false")
    ):
        return NO_MODES
    greedy = ask.temperature == 0 or ask.top_k == 1
    return continuation_modes(
        greedy=greedy,
        seeded=ask.seed is not None,
        positional=greedy and _is_positional(ask),
        returns_token_ids=handle.returns_token_ids,
        resumes=handle.resumes,
    )


def _is_positional(ask: Ask) -> bool:
    """Whether its sampling depends on where the output begins."""
    penalties = ask.presence_penalty or ask.frequency_penalty or (ask.repetition_penalty or 1) != 1
    placed = any(map(given, (ask.stop, ask.bad_words, ask.allowed_token_ids, ask.truncate_prompt_tokens)))
    return bool(penalties or placed or ask.min_tokens)


@dataclass(slots=True)
class Journal:
    """One stream's. `read` what was relayed, then ask the rest; `request` builds the leg that goes on."""

    parsed: Parsed
    modes: frozenset[Mode]
    fallback: int = 0
    """Order of the replica that began: one of another order holds another model, whatever its engine."""
    mode: Mode | None = None
    """Of the leg that goes on."""
    prompt: list[int] | None = None
    output: list[int] = field(default_factory=list)
    safe: int = 0
    """Tokens of the output whose text the client has; those after it (half a character) are computed again."""
    reasons: bool = False
    """What the client has last is reasoning. In a replay, which is raw text, nobody could tell where it ends."""
    finish: str | None = None
    head: Chunk = field(default_factory=Chunk)
    usage_sent: bool = False

    def read(self, reader: StreamReader) -> list[Chunk]:
        """Take in the events since the last call, on their way to the client, and return them."""
        chunks = reader.chunks()
        for chunk in chunks:
            self._take(chunk)
        if reader.unreadable:
            # An engine that says something else: never continue on a guess.
            self._give_up()
        return chunks

    def _give_up(self) -> None:
        self.prompt = None
        self.output.clear()
        self.safe = -1

    def _take(self, chunk: Chunk) -> None:
        if not self.head.id:
            self.head = chunk
        if chunk.usage is not None and not chunk.choices:
            self.usage_sent = True
        if self.safe < 0:
            return
        for choice in chunk.choices:
            if self.prompt is None and self.safe == 0:
                self.prompt = choice.prompt_token_ids or chunk.prompt_token_ids
            self.output += choice.token_ids or ()
            if choice.shown or choice.reasoned:
                self.safe = len(self.output)
                self.reasons = not choice.shown
            self.finish = choice.finish_reason or self.finish

    def left(self, handle: ReplicaHandle) -> int | None:
        """Output tokens still to come on a replica; None: it can't be continued there."""
        if self.prompt is None or self.safe < 0:
            return None
        return tokens_left(self.parsed.output_limit, handle.max_model_len, len(self.prompt), self.safe)

    def mode_on(self, handle: ReplicaHandle) -> Mode | None:
        """How the stream can go on there; None: it can't."""
        return mode_at(
            self.modes,
            same_fallback=handle.fallback == self.fallback,
            returns_token_ids=handle.returns_token_ids,
            resumes=handle.resumes,
            in_reasoning=self.reasons,
        )

    def request(self, handle: ReplicaHandle) -> tuple[bytes, bytes] | None:
        """Path and body of the leg that goes on; None: not possible there."""
        left = self.left(handle)
        self.mode = self.mode_on(handle)
        if left is None or left < 1 or self.mode is None:
            return None
        assert self.prompt is not None
        output = self.output[: self.safe]
        if self.mode == "resume":
            path = b"/v1/chat/completions" if self.parsed.endpoint == "chat" else b"/v1/completions"
            added = {"resume_token_ids": output, "return_token_ids": True}
            return path, with_fields(self.parsed.body, _encode(added)[1:-1] + b",")
        asked: dict[str, Any] = msgspec.json.decode(self.parsed.body)
        body = {name: asked[name] for name in _CARRIED if name in asked}
        body |= {
            "model": self.parsed.ask.model,
            "prompt": self.prompt + output,
            "max_tokens": left,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return b"/v1/completions", _encode(body)

    def begin_leg(self) -> None:
        """Another replica goes on: what the client hasn't seen in text is forgotten."""
        del self.output[self.safe :]

    def reshape(self, chunks: list[Chunk], *, done: bool, usage: bool) -> bytes:
        """Events of a continuing leg in the form of the first one's: same id, same kind of chunk, usage of both."""
        made = []
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.reasoned:
                    made.append(self.event("", None, reasoning=choice.reasoned))
                if choice.shown or choice.finish_reason:
                    made.append(self.event(choice.shown or "", choice.finish_reason, choice.stop_reason))
            if chunk.usage is not None and not chunk.choices and usage:
                made.append(self._usage(chunk.usage))
        if done:
            made.append(DONE + b"\n\n")
        return b"".join(made)

    def event(
        self, text: str, finish: str | None, stop_reason: str | int | None = None, *, reasoning: str | None = None
    ) -> bytes:
        chat = self.parsed.endpoint == "chat"
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        delta = {"content": text} if text else {}
        if reasoning:
            delta |= {"reasoning_content": reasoning, "reasoning": reasoning}
        choice |= {"delta": delta} if chat else {"text": text}
        return b"data: " + _encode(self._envelope() | {"choices": [choice]}) + b"\n\n"

    def _envelope(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.parsed.endpoint == "chat" else "text_completion"
        return {"id": self.head.id, "object": kind, "created": self.head.created, "model": self.head.model}

    def _usage(self, last: Usage) -> bytes:
        assert self.prompt is not None
        # A replayed output is prompt to the last engine, a resumed one isn't.
        output = last.output if self.mode == "resume" else len(self.output)
        cached = min(last.cached or 0, len(self.prompt))
        return self.usage_event(output, cached)

    def usage_event(self, output: int, cached: int) -> bytes:
        prompt = len(self.prompt or ())
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        self.usage_sent = True
        return b"data: " + _encode(self._envelope() | {"choices": [], "usage": usage}) + b"\n\n"

    def ending(self, *, usage: bool) -> bytes | None:
        """What is missing of a stream that broke off when everything but its end had been said; None: more was."""
        if self.prompt is None or self.safe < 0:
            return None
        made = b""
        if self.finish is None:
            if not is_at_limit(self.parsed.max_tokens, len(self.output), self.safe):
                return None
            made = self.event("", "length")
        if usage and not self.usage_sent:
            made += self.usage_event(len(self.output), 0)
        return made + DONE + b"\n\n"
