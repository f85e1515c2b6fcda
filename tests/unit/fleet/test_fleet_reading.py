"""Streams read a run of events at a time say what their events say one by one, wherever their pieces are cut."""

import json
import random
from typing import Any

import msgspec
import pytest

from shoal.fleet.gateway.formats import (
    Chunk,
    CompletionsFormat,
    ErrorDetail,
    MessagesFormat,
    ResponsesFormat,
    StreamFormat,
)
from shoal.fleet.gateway.names import Names
from shoal.fleet.gateway.reading import StreamReader
from shoal.fleet.gateway.usage import Usage, estimate_tokens
from shoal.http.sse import SseSplitter, data_of, payloads, split_events

FORM = CompletionsFormat()


def data(value: Any, **options: Any) -> bytes:
    options.setdefault("separators", (",", ":"))
    return b"data: " + json.dumps(value, **options).encode() + b"\n\n"


def said(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


WORDS = [
    "a",
    " fish",
    "",
    "x" * 17,
    " and a very long piece of text",
    'say "hi"',
    "é",
    "日本語の文章です、とても長い",
    "\\",
]
TRICKY = ['"usage": {"a": 1}', '"error"', "data: {", "data: [DONE]", "\n\ndata: {", '"', "\r\n\r\n", '","x":"']
COUNTED = {"prompt_tokens": 3, "completion_tokens": 9}
PLAIN = [said(word) for word in WORDS]
DONE = b"data: [DONE]\n\n"
STREAMS: dict[str, bytes] = {
    "plain": b"".join(map(data, PLAIN * 9)) + DONE,
    "uniform": data(said(" token")) * 700 + DONE,
    "role and finish": data({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    + data(said(" to")) * 30
    + data(said(None, "stop"))
    + data({"choices": [], "usage": COUNTED})
    + DONE,
    "tricky text": b"".join(data(said(word)) for word in TRICKY * 4) + DONE,
    "not ASCII": b"".join(data(e, ensure_ascii=False) for e in PLAIN * 4) + DONE,
    "spaced": b"".join(data(e, separators=(", ", ": ")) for e in [*PLAIN, said("a", usage=COUNTED)]) + DONE,
    "null usage": b"".join(data(e | {"usage": None}) for e in PLAIN)
    + data({"choices": [], "usage": COUNTED})
    + DONE,
    "spaced null usage": b"".join(data(e | {"usage": None}, separators=(", ", ": ")) for e in PLAIN) + DONE,
    "usage in each": b"".join(data(e | {"usage": {"prompt_tokens": i}}) for i, e in enumerate(PLAIN)) + DONE,
    "comments": b": hello\n\n" + data(PLAIN[0]) + b": ping\n\n" + data(PLAIN[1]) * 3 + b": ping\n\n" + DONE,
    "a comment and its like": b": ping\n\n" + data(said("data: {")) + b": ping\n\n" + data(said("a")),
    "CRLF": (b"".join(map(data, PLAIN)) + DONE).replace(b"\n", b"\r\n"),
    "no space": (b"".join(map(data, PLAIN)) + DONE).replace(b"data: ", b"data:"),
    "no end": b"".join(map(data, PLAIN)),
    "an error": data(PLAIN[0]) * 3 + data({"error": {"message": "oh", "code": 500}}) + data(PLAIN[1]) + DONE,
    "an error after usage": data(PLAIN[0]) + data({"choices": [], "usage": COUNTED}) + data({"error": "oh"}),
    "null error": b"".join(data(e | {"error": None}) for e in PLAIN) + DONE,
    "garbage": data(PLAIN[0]) * 5 + b'data: {"choices": nonsense}\n\n' + data(PLAIN[1]) * 5 + DONE,
    "of another type": data(PLAIN[0]) + data({"choices": "what"}) + data(PLAIN[1]) + DONE,
    "more fields": data(PLAIN[0])
    + b'id: 1\ndata: {"choices":[]}\n\ndata: {"choices":\ndata: []}\n\n'
    + data(PLAIN[1]),
    "empty data": data(PLAIN[0]) + b"data: \n\n" + data(PLAIN[1]) + DONE,
    "ids": b"".join(data({"choices": [{"text": "a", "token_ids": [1] * n}]}) for n in range(5)) + DONE,
    "tools": data({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}" * 20}}]}}]})
    * 4,
    "reasoning": data({"choices": [{"delta": {"reasoning_content": "hm", "content": ""}}]}) * 4
    + data(said("a")) * 4,
    "two choices": data({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}) * 5 + DONE,
}
MESSAGES = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n'
    + b'event: content_block_start\ndata: {"type":"content_block_start"}\n\n'
    + b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a fish"}}\n\n' * 20
    + b'event: ping\ndata: {"type": "ping"}\n\n'
    + b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"thinking":"hm"}}\n\n' * 2
    + b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":22}}\n\n'
    + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
    + b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a fish"}\n\n' * 20
    + b'event: response.output_text.done\ndata: {"type":"response.output_text.done","text":"a"}\n\n'
    + b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1",'
    + b'"usage":{"input_tokens":5,"output_tokens":20}}}\n\n'
)


class Expected:
    """What the events of a stream say, each parsed on its own."""

    def __init__(self, form: StreamFormat, raw: bytes) -> None:
        self.relayed: list[bytes] = []
        self.output = 0
        self.usage: Usage | None = None
        self.failure: ErrorDetail | None = None
        self.done = self.unreadable = False
        self.chunks: list[Chunk] = []
        for payload in [data_of(event) for event in split_events(raw)]:
            if not payload:
                continue
            try:
                reading = form.read(payload)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.unreadable = True
                self.output += estimate_tokens(len(payload))
                self.relayed.append(payload)
                continue
            if reading.error is not None:
                self.failure = reading.error
                return
            self.output += reading.output
            self.usage = reading.usage.after(self.usage) if reading.usage else self.usage
            self.done |= reading.done
            self.chunks += [reading.chunk] if reading.chunk else []
            self.relayed.append(payload)


def check(form: StreamFormat, raw: bytes, size: int, *, journaled: bool) -> None:
    reader, splitter, out = StreamReader(form, journaled=journaled), SseSplitter(), b""
    chunks: list[Chunk] = []
    for at in range(0, len(raw), size):
        if (events := splitter.feed(raw[at : at + size])) and reader.failure is None:
            out += reader.read(events)
            if reader.caught_up:
                chunks += reader.chunks()
    expected = Expected(form, raw)
    assert payloads(out) == expected.relayed
    assert (reader.usage, reader.done, reader.failure) == (expected.usage, expected.done, expected.failure)
    assert reader.output == expected.output
    assert reader.unreadable == expected.unreadable
    if journaled:
        assert chunks + reader.chunks() == expected.chunks
    else:
        assert not reader.chunks()


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize("raw", STREAMS.values(), ids=STREAMS)
def test_a_run_says_what_its_events_say(raw: bytes, journaled: bool) -> None:
    for size in (len(raw), 3000, 500, 90):
        check(FORM, raw, size, journaled=journaled)


@pytest.mark.parametrize(("form", "raw"), [(MessagesFormat(), MESSAGES), (ResponsesFormat(), RESPONSES)])
def test_so_do_other_apis(form: StreamFormat, raw: bytes) -> None:
    for size in (len(raw), 700, 90):
        check(form, raw, size, journaled=False)


def test_any_mixture_of_events_is_read_alike() -> None:
    dice = random.Random(12)
    events = [event + b"\n\n" for raw in STREAMS.values() for event in set(raw.split(b"\n\n")) if event]
    events = [event for event in events if b"\r" not in event]
    for _ in range(150):
        raw = b"".join(dice.choice(events) * dice.choice((1, 1, 2, 40)) for _ in range(dice.randrange(1, 12)))
        check(FORM, raw, dice.choice((60, 400, 2500, len(raw))), journaled=dice.random() < 0.5)


def test_a_counted_stream_is_not_parsed() -> None:
    class Counting(CompletionsFormat):
        parsed = 0

        def read(self, data: bytes) -> Any:
            self.parsed += 1
            return super().read(data)

        def output_of(self, lines: bytes, chunks: list[Chunk] | None = None) -> int:
            self.parsed += lines.count(b"\n") + 1
            return super().output_of(lines, chunks)

    form = Counting()
    reader = StreamReader(form)
    events = [data(said(" token")) * 4] * 20 + [data({"choices": [], "usage": COUNTED}) + DONE]
    assert [reader.read(run) for run in events] == events
    assert reader.done
    assert reader.usage == Usage(3, 9)
    assert form.parsed == 2
    assert reader.output == 80
    assert form.parsed == 82


def test_what_is_held_unread_is_bounded() -> None:
    reader, run = StreamReader(FORM, journaled=False), data(said(" token")) * 100
    for _ in range(20):
        reader.read(run)
        held = sum(len(part) for part in reader._unread if isinstance(part, bytes))
        assert held <= 32 * 1024


def test_a_name_is_translated_however_its_events_spell_it() -> None:
    names = Names("nick", "real")
    spellings = [
        '"model":"real"',
        '"model": "real"',
        '"model":"other"',
        '"x":"\\"model\\":\\"real\\"","model":"real"',
    ]
    for first in spellings:
        names = Names("nick", "real")
        for second in spellings:
            for spelled in (first, second, second):
                event = b'data: {"id":1,' + spelled.encode() + b"}\n\n"
                said = json.loads(names.events(event)[6:])
                assert said == json.loads(event[6:]) | {"model": "nick"}
