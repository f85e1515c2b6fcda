"""gpt-oss's notation: an answer is a series of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>                       <|start|>assistant<|channel|>final<|message|>…<|return|>

`final`, and `commentary` without a recipient (a preamble meant for the user), are content; `analysis` is the
model's own reasoning; a message to `functions.name` is a call.
"""

import re
from collections.abc import Callable

from shoal.engine.text.cursor import Malformed, Reading, TextCursor, any_of
from shoal.engine.text.tool_events import EventSink
from shoal.engine.text.tool_json import ToolCall, is_name, object_text, read_json

_BEGINS = ("<|start|>", "<|channel|>", "<|message|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_MESSAGE = ("<|message|>",)
_BEGIN_PATTERN, _END_PATTERN, _MESSAGE_PATTERN = any_of(_BEGINS), any_of(_ENDS), any_of(_MESSAGE)
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def read_harmony(cursor: TextCursor, sink: EventSink) -> Reading[None]:
    """Read one answer. An answer without any mark is content."""
    mark = yield from cursor.until(_BEGIN_PATTERN, _BEGINS, sink.content)
    while mark:
        header = [mark]
        if mark != "<|message|>" and not (yield from cursor.until(_MESSAGE_PATTERN, _MESSAGE, header.append)):
            return
        mark = yield from _read_message(cursor, sink, "".join(header))


def _read_message(cursor: TextCursor, sink: EventSink, header: str) -> Reading[str]:
    """Read a message's body; the mark that ended it, empty at the end of the text."""
    recipient = _RECIPIENT.search(header)
    show = _sink_of(header, sink)
    if recipient is not None and is_name(recipient[1]):
        arguments = yield from _read_arguments(cursor)
        if arguments is not None:
            sink.calls([ToolCall(recipient[1], arguments)])
            show = _drop
        else:
            show = sink.content
    return (yield from cursor.until(_END_PATTERN, _ENDS, show))


def _read_arguments(cursor: TextCursor) -> Reading[str | None]:
    """The JSON object of a call, `{}` for an empty message; None, and nothing read, if there is another text."""
    cursor.mark()
    try:
        yield from cursor.skip()
        if not (yield from cursor.peek()) or (yield from cursor.literal("<|")):
            cursor.rewind()
            return "{}"
        is_object = (yield from cursor.peek()) == "{"
        arguments = object_text((yield from read_json(cursor))) if is_object else None
    except Malformed:
        arguments = None
    if arguments is None:
        cursor.rewind()
    return arguments


def _sink_of(header: str, sink: EventSink) -> Callable[[str], None]:
    """Where the text of a message goes that is no call."""
    channel = _CHANNEL.search(header)
    if channel is None or channel[1] in ("final", "commentary"):
        return sink.content
    return sink.reasoning if channel[1] == "analysis" else _drop


def _drop(text: str) -> None:
    """Nothing that the client sees."""
