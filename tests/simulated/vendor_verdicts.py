"""Verdicts on answers of the Responses and Messages APIs, and what all verdicts share."""

import json
from typing import Any

from simulated.client import Call, Received
from simulated.model import answer_to, text_of


class Violation(Exception):
    """Of an invariant; the message says what was seen."""


def unfinished(call: Call, received: Received) -> str:
    """Return why a stream may lack its end. Raises `Violation` where it may not."""
    if received.left:
        return "left"
    if call.faulty:
        return "cut"
    raise Violation(f"the connection ended within a stream: {received.lost}")


def judge_vendor_answer(call: Call, answer: dict[str, Any]) -> str:
    """Judge a whole answer."""
    content = answer["output"][0]["content"] if "output" in answer else answer["content"]
    output, _ = answer_to(call.body)
    if content[0]["text"] != text_of(output):
        raise Violation(f"wrong answer: {content[0]['text']!r}, expected {text_of(output)!r}")
    if answer["usage"]["output_tokens"] != len(output):
        raise Violation(f"usage {answer['usage']}, expected {len(output)} tokens of output")
    return "ok"


def judge_vendor_stream(call: Call, received: Received) -> str:
    """Judge a stream of named events."""
    events = bytes(received.body).split(b"\n\n")
    tail = events.pop()
    if tail and received.whole:
        raise Violation(f"the stream ends within an event: {tail!r}")
    text, ended = "", None
    for event in events:
        if event.startswith(b":"):
            continue
        if ended is not None:
            raise Violation(f"an event after the end: {event!r}")
        chunk = json.loads(event.partition(b"\ndata: ")[2])
        kind = chunk["type"]
        if kind in ("response.output_text.delta", "content_block_delta"):
            delta = chunk["delta"]
            text += delta if isinstance(delta, str) else delta["text"]
        elif kind in ("response.completed", "message_stop", "error"):
            ended = kind
    expected = text_of(answer_to(call.body)[0])
    if not expected.startswith(text):
        raise Violation(f"wrong text: {text!r}, expected {expected!r}")
    if ended is not None and ended != "error" and text != expected:
        raise Violation(f"truncated in silence: {text!r}, expected {expected!r}")
    if ended is None and received.whole:
        raise Violation(f"ended without its last event or an error: {text!r}")
    if not received.whole:
        return unfinished(call, received)
    return "error event" if ended == "error" else "ok"
