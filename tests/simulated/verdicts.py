"""Whether what a client received is an answer, a proper error, or what must never be."""

import json
from typing import Any

from simulated.client import Call, Received
from simulated.model import answer_to, prompt_of, text_of
from simulated.vendor_verdicts import Violation, judge_vendor_answer, judge_vendor_stream, unfinished

_TYPED = frozenset({429, 502, 503, 504})


def judge(call: Call, received: Received, seed: Any, *, closing: bool) -> str:
    """Return what the answer is. Raises `Violation`.

    `seed`: what the replicas were told to sample it with. `closing`: the fleet was being stopped.
    """
    if received.late:
        raise Violation(f"no end within {received.seconds:.0f} s; {len(received.body)} bytes of {received.status}")
    if received.surplus:
        raise Violation(f"{received.surplus} bytes after the end of the answer")
    if received.status and received.headers.get("x-request-id") != call.id:
        raise Violation(f"the answer to {received.headers.get('x-request-id')!r}")
    if call.streams and received.status == 200:
        return judge_vendor_stream(call, received) if call.vendor else _stream(call, received, seed)
    if not received.whole:
        if received.left:
            return "left"
        if call.faulty:
            return "cut"
        if closing and not received.status and not received.body:
            return "closed"
        raise Violation(f"the connection ended without a whole answer: {received.lost}")
    if received.status != 200:
        return _error(call, received)
    return _whole(call, received, seed)


def _error(call: Call, received: Received) -> str:
    # A bad connection may not bring the body in time.
    typed = _TYPED | ({408} if call.faulty else frozenset())
    try:
        error = json.loads(received.body)["error"]
        coded = call.path == "/v1/messages" or error["code"]
        proper = received.status in typed and error["message"] and error["type"] and coded
    except (ValueError, KeyError, TypeError):
        proper = False
    if not proper:
        raise Violation(f"status {received.status}: {bytes(received.body[:200])!r}")
    return f"typed error {received.status}"


def _expected(call: Call, seed: Any) -> tuple[list[int], str, str]:
    output, finish = answer_to(call.body | ({"seed": seed} if call.body.get("temperature") != 0 else {}))
    return output, text_of(output), finish


def _whole(call: Call, received: Received, seed: Any) -> str:
    answer = json.loads(received.body)
    if call.vendor:
        return judge_vendor_answer(call, answer)
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    output, expected, finish = _expected(call, seed)
    if text != expected or choice["finish_reason"] != finish:
        raise Violation(f"wrong answer: {text!r}, expected {expected!r}")
    _check_usage(call, answer["usage"], output)
    return "ok"


def _check_usage(call: Call, usage: dict[str, Any], output: list[int]) -> None:
    seen = usage["prompt_tokens"], usage["completion_tokens"]
    if seen != (len(prompt_of(call.body)), len(output)):
        raise Violation(f"usage {seen}, expected {(len(prompt_of(call.body)), len(output))}")


def _stream(call: Call, received: Received, seed: Any) -> str:
    events = bytes(received.body).split(b"\n\n")
    tail = events.pop()
    if tail and received.whole:
        raise Violation(f"the stream ends within an event: {tail!r}")
    text, finish, error, done = "", None, None, False
    usages: list[dict[str, Any]] = []
    for event in events:
        if event.startswith(b":") or not event:
            continue
        if done:
            raise Violation(f"an event after the end: {event!r}")
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            done = True
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            raise Violation(f"an event that isn't JSON: {event!r}") from None
        error = chunk.get("error", error)
        if chunk.get("usage"):
            usages.append(chunk["usage"])
        for choice in chunk.get("choices", ()):
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            finish = choice["finish_reason"] or finish
            if "token_ids" in choice:
                raise Violation("token ids that nobody asked for")
    output, expected, ending = _expected(call, seed)
    if not expected.startswith(text):
        raise Violation(f"wrong text: {text!r}, expected {expected!r}")
    if done and error is not None:
        raise Violation(f"an error event and [DONE]: {error}")
    if done:
        if text != expected or finish != ending:
            raise Violation(f"truncated in silence: {text!r} ({finish}), expected {expected!r} ({ending})")
        if len(usages) != bool(call.body.get("stream_options")):
            raise Violation(f"{len(usages)} events of usage")
        for usage in usages:
            _check_usage(call, usage, output)
        return "ok" if received.whole else unfinished(call, received)
    if error is not None:
        if not error.get("message") or not error.get("code"):
            raise Violation(f"an error event without message or code: {error}")
        return "error event" if received.whole else unfinished(call, received)
    if received.whole:
        raise Violation(f"ended without [DONE] or an error: {text!r}")
    return unfinished(call, received)
