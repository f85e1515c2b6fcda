"""The access log, and the prompt log for those who want one. Neither ever holds an API key."""

import logging
import os
import queue
import re
import threading
import time

import msgspec

from shoal.fleet.gateway.record import RequestRecord
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

log = logging.getLogger("shoal.fleet")
access_log = logging.getLogger("shoal.access")

_WAITING = 1000
_BUILT_IN = (
    r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
    r"\b(?:sk|pk|ghp|gho|xox[bp])[-_][A-Za-z0-9_-]{8,}",
    r"\b[Bb]earer\s+[A-Za-z0-9._~+/-]{8,}=*",
    r"\b\d(?:[ -]?\d){12,18}\b",
)
"""E-mail addresses, keys of well-known kinds, bearer tokens, card numbers."""
REDACTED = "[redacted]"


class AccessLine(msgspec.Struct, frozen=True):
    """One line of the access log. Never holds a prompt, an answer or a key."""

    time: float
    request_id: str
    client: str
    key: str
    method: str
    path: str
    status: int
    outcome: str
    model: str
    replica: str
    seconds: float
    ttft: float | None
    prompt_tokens: int
    completion_tokens: int
    bytes_sent: int
    attempts: int


class AccessLog:
    """An observer that writes a JSON line a request to the logger `shoal.access`."""

    def on_finished(self, record: RequestRecord) -> None:
        first = record.first_token
        line = AccessLine(
            time=time.time(),
            request_id=record.request_id,
            client=record.client,
            key=record.key,
            method=record.method[:16],
            path=record.path[:200],
            status=record.status,
            outcome=record.outcome.value if record.outcome is not None else "",
            model=record.model,
            replica=record.replica,
            seconds=round(record.ended - record.arrived, 6),
            ttft=round(first - record.arrived, 6) if first is not None else None,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            bytes_sent=record.bytes_sent,
            attempts=record.attempts,
        )
        access_log.info("%s", msgspec.json.encode(line).decode())

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        """Nothing: a request is one line."""

    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
        """Nothing: a request is one line."""

    def on_distrust(self, replica: str, trust: float) -> None:
        """Nothing: that is the gateway's own log."""


class _Prompt(msgspec.Struct):
    time: float
    request_id: str
    key: str
    path: str
    body: str


class PromptLog:
    """Request bodies, redacted, as JSON lines in a file. A thread writes; a full disk costs lines, not requests."""

    def __init__(self, path: str, patterns: tuple[str, ...] = ()) -> None:
        """`re.error` for a pattern that is none; OSError if the file can't be written."""
        self._patterns = re.compile("|".join(f"(?:{p})" for p in (*_BUILT_IN, *patterns)))
        # Prompts are nobody else's business.
        self._file = open(path, "a", encoding="utf-8", opener=_private)  # noqa: SIM115 — closed by `close`
        self._queue: queue.Queue[_Prompt | None] = queue.Queue(_WAITING)
        self.lost = 0
        self._thread = threading.Thread(target=self._work, name="prompt-log", daemon=True)
        self._thread.start()

    def add(self, record: RequestRecord, body: bytes) -> None:
        """Never waits: beyond a thousand waiting lines, more are lost and counted."""
        line = _Prompt(time.time(), record.request_id, record.key, record.path, body.decode("utf-8", "replace"))
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def redacted(self, text: str) -> str:
        return self._patterns.sub(REDACTED, text)

    def _work(self) -> None:
        while (line := self._queue.get()) is not None:
            line.body = self.redacted(line.body)
            try:
                self._file.write(msgspec.json.encode(line).decode() + "\n")
                if self._queue.empty():
                    self._file.flush()
            except OSError as error:
                if not self.lost:
                    log.error("the prompt log can't be written: %s", error)
                self.lost += 1

    def close(self) -> None:
        """Write what waits, and end."""
        self._queue.put(None)
        self._thread.join(5.0)
        try:
            self._file.close()
        except OSError as error:
            self.lost += 1
            log.error("the prompt log can't be written: %s", error)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
