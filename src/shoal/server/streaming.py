"""What is counted along a stream, and answers in one piece."""

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from shoal.engine.outputs import RequestOutput
from shoal.http.errors import JSON_TYPE
from shoal.server.answers import Usage, usage_of
from shoal.server.fields import StreamOptions

_encode = msgspec.json.Encoder().encode


def json_answer(value: msgspec.Struct) -> Response:
    return Response(_encode(value), media_type=JSON_TYPE)


class UsageMode(msgspec.Struct, frozen=True):
    """What `stream_options` say about usage: nothing, at the end, or in every event."""

    counted: bool = False
    continuous: bool = False

    @classmethod
    def of(cls, options: StreamOptions | None) -> "UsageMode":
        counted = options is not None and options.include_usage is True
        return cls(counted, counted and options is not None and options.continuous_usage_stats is True)

    def within(self, usage: "StreamUsage") -> Usage | UnsetType | None:
        """The `usage` of an event that is not the last."""
        if self.continuous:
            return usage.total()
        return None if self.counted else UNSET


class StreamUsage:
    """Tokens of one request: every prompt once, every generated token of every choice."""

    def __init__(self, prompts: int, resumed: int = 0) -> None:
        """`resumed`: tokens of the output that another replica generated."""
        self._prompt = [0] * prompts
        self._cached = [0] * prompts
        self._generated = resumed
        self.reasoning_tokens: int | None = None
        """None: not known."""

    def add(self, place: int, output: RequestOutput, *, generated: bool = True) -> None:
        if output.prompt_tokens:
            self._prompt[place] = output.prompt_tokens
            # Later choices of the same prompt find what the first has computed: that is no saving of the request.
            if output.index == 0:
                self._cached[place] = output.cached_tokens
        if generated:
            self._generated += len(output.token_ids)

    def total(self) -> Usage:
        return usage_of(sum(self._prompt), self._generated, sum(self._cached), self.reasoning_tokens)
