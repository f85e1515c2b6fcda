"""Requests of a trace that wait for others: turns of a conversation, steps of an agent.

Two forms, both lines of a Mooncake trace with more fields (times in ms):

- `request_id`, `wait_for` (request ids), `delay`, `tool_wait_ms`: sent `delay` + `tool_wait_ms` after the last of
  these has ended; without `wait_for`, at `timestamp`. Source: `AgenticMooncakeRow`, Dynamo 1.3 (dynamo-data-gen).
- `session_id` and `delay`: sent `delay` after the line before of this session has ended. Without hash ids, the
  prompt grows: `input_length` is what this turn adds. Source: aiperf's Mooncake sessions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What a line says of its time and of the requests that it waits for."""

    id: str
    session: str
    at: float
    """Seconds; where the line says none: the end of what it waits for, if that took no time, and its delay."""
    input: int
    """Tokens of the whole prompt."""
    after: tuple[str, ...]
    delay: float
    new: int
    """Tokens that it adds to the prompt and the answer of the one line that it waits for; 0: it is whole."""


@dataclass(frozen=True, slots=True)
class _Seen:
    id: str
    at: float
    tokens: int
    """Of the prompt and the answer."""


class Chains:
    """Links the lines of one trace, in their order: a line may wait only for lines before it."""

    def __init__(self) -> None:
        self._requests: dict[str, _Seen] = {}
        self._sessions: dict[str, _Seen] = {}

    def link(self, row: Mapping[str, object], number: int, size: int, output: int, *, has_blocks: bool) -> Link:
        """Link the line `number` (from 1).

        Raises ValueError for a request id that comes twice or that no line before has, KeyError for a missing time.

        Args:
            size: `input_length`.
            has_blocks: the line has hash ids, so that they are its whole prompt.
        """
        session = _name(row, "session_id")
        given = _name(row, "request_id")
        if given in self._requests:
            raise ValueError(f"request_id {given!r} is on an earlier line too")
        delay = (_milliseconds(row, "delay") or 0.0) + (_milliseconds(row, "tool_wait_ms") or 0.0)
        waits, new = self._predecessors(row, session, given), 0
        if waits and not given:
            new = 0 if has_blocks else size
            size += waits[0].tokens if new else 0
        at = _milliseconds(row, "timestamp")
        if at is None:
            if not waits:
                raise KeyError("timestamp")
            at = max(w.at for w in waits) + delay
        at = max([at, *(w.at for w in waits)])
        identity = given or f"line {number}"
        seen = _Seen(identity, at, size + output)
        if given:
            self._requests[given] = seen
        if session:
            self._sessions[session] = seen
        return Link(identity, session, at, size, tuple(w.id for w in waits), delay if waits else 0.0, new)

    def _predecessors(self, row: Mapping[str, object], session: str, given: str) -> list[_Seen]:
        named = row.get("wait_for") or ()
        if not isinstance(named, list | tuple) or not all(isinstance(n, str) for n in named):
            raise ValueError(f"wait_for {named!r} is no list of request ids")
        unknown = [n for n in named if n not in self._requests]
        if unknown:
            raise ValueError(f"wait_for {unknown[0]!r} is no request_id of an earlier line")
        if named:
            return [self._requests[n] for n in named]
        before = self._sessions.get(session) if session and not given else None
        return [before] if before is not None and row.get("delay") is not None else []


def _name(row: Mapping[str, object], field: str) -> str:
    value = row.get(field)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{field} {value!r} is no name")
    return str(value)


def _milliseconds(row: Mapping[str, object], field: str) -> float | None:
    value = row.get(field)
    return None if value is None else seconds(value, field) / 1e3


def seconds(value: object, field: str) -> float:
    """Return a time as a number; ValueError names the field where it is none, not finite or negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{field} {value!r} is no time")
    return float(value)
