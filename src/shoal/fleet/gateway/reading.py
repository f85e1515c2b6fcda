"""One leg's stream as it passes: what of it is relayed, and what it says.

A gateway has little time for an event: an engine's thousand tokens a second are a thousand events. What ends a
stream, or counts it, stands in few of them, and a search for the words that those need costs a hundredth of parsing
all. So events of output are passed on unread, a run at a time. They are parsed only if their tokens have to be
counted here (the engine doesn't say, or the stream broke off) or a continuation needs them.

Per 100-chunk stream on one core, of about 1300 µs in all: 40 µs for the search, 90 µs more where the engine doesn't
count; reading each event on its own took 700 µs (loaded machine, `benchmarks/gateway_cost.py`).
"""

import re
from dataclasses import dataclass, field

import msgspec

from shoal.fleet.gateway.formats import Chunk, ErrorDetail, StreamFormat
from shoal.fleet.gateway.usage import Usage, estimate_tokens
from shoal.http.sse import DONE_EVENT, data_of, payloads, split_events

_UNREAD_BYTES = 32 * 1024
"""Of one stream held unread: about 130 events. More are parsed as they come, 130 at a time."""
# Inside a JSON string a quote is always escaped, so neither word is found in a text.
_ERROR = b'"error"'
_USAGE = b'"usage"'
_COUNT = re.compile(_USAGE + rb"\s*:\s*(?!\s|null)")
_NOT_EVENTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class StreamReader:
    """Reads one leg's stream."""

    format: StreamFormat
    journaled: bool = True
    """Its events are wanted, not only what they count."""
    usage: Usage | None = None
    done: bool = False
    unreadable: bool = False
    """An event was something else than the API's: what was said since can't be known."""
    failure: ErrorDetail | None = None
    """The error event that the stream ended with."""
    response_id: str = ""
    opened: bool = False
    """Something is relayed: another replica can't answer any more."""
    _held: list[bytes] = field(default_factory=list)
    """Opening events, which go with the first that is none: until then another replica may answer as well."""
    _output: int = 0
    _unread: list[bytes | Chunk] = field(default_factory=list)
    """Runs of plain events, and where the stream is journaled, the events read between them."""
    _unread_bytes: int = 0
    _chunks: list[Chunk] = field(default_factory=list)

    def read(self, events: bytes) -> bytes:
        """The events that are to be relayed: without comments, and without an error event and what follows it."""
        plain = self._plain(events)
        if plain:
            self.opened = True
            run = events[:plain]
            self._unread.append(run)
            self._unread_bytes += plain
        if plain < len(events):
            rest = events[plain:]
            kept = self._read_each(rest)
            events = events if kept is rest else events[:plain] + kept
        if self._unread_bytes > _UNREAD_BYTES:
            self._catch_up()
        return events

    def _plain(self, events: bytes) -> int:
        """Bytes at the start that are lines of output and nothing else; those after them have to be read."""
        opening = self.format.plain
        if not events.startswith(opening) or self._held or b"\r" in events:
            return 0
        end = len(events)
        if (at := events.find(_ERROR)) >= 0:
            end = events.rfind(b"\n\n", 0, at) + 2
        if _USAGE in events and (found := _COUNT.search(events, 0, end)) is not None:
            end = events.rfind(b"\n\n", 0, found.start()) + 2
        if events.endswith(DONE_EVENT, 0, end):
            end -= len(DONE_EVENT)
        # As many lines as such events have: none of them is a comment or has other fields.
        lines = (events.count(b"\n\n" + opening, 0, end) + 1) * (opening.count(b"\n") + 2)
        return end if events.count(b"\n", 0, end) == lines else 0

    def _read_each(self, events: bytes) -> bytes:
        found = split_events(events)
        kept = []
        for event in found:
            data = data_of(event)
            if not data:
                continue
            if not self._take(data):
                break
            if self.opened:
                kept.append(event)
            else:
                self._held.append(event)
        if len(kept) == len(found) and not self._held:
            return events
        if self.opened and self._held:
            kept, self._held = self._held + kept, []
        return b"".join(event + b"\n\n" for event in kept)

    def _take(self, data: bytes, *, late: bool = False) -> bool:
        """Whether the event is to be relayed. `late`: it was."""
        try:
            reading = self.format.read(data)
        except _NOT_EVENTS:
            self.unreadable = self.opened = True
            self._output += estimate_tokens(len(data))
            return True
        if reading.error is not None:
            self.failure = reading.error
            return False
        self._output += reading.output
        if reading.usage is not None:
            self.usage = reading.usage.after(self.usage)
        if reading.done:
            self.done = True
        if reading.chunk is not None and self.journaled:
            if late:
                self._chunks.append(reading.chunk)
            else:
                self._unread.append(reading.chunk)
                self._unread_bytes += len(data)
        self.opened = self.opened or not reading.opening
        self.response_id = reading.response_id or self.response_id
        return True

    # What was passed on unread.

    @property
    def output(self) -> int:
        """Tokens seen; reads what wasn't yet."""
        self._catch_up()
        return self._output

    @property
    def caught_up(self) -> bool:
        """Chunks have been read that nobody took."""
        return bool(self._chunks)

    def chunks(self) -> list[Chunk]:
        """The events since the last call, of a stream that is journaled; reads what wasn't yet."""
        self._catch_up()
        chunks, self._chunks = self._chunks, []
        return chunks

    def _catch_up(self) -> None:
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        for run in unread:
            if isinstance(run, bytes):
                self._read_run(run)
            else:
                self._chunks.append(run)

    def _read_run(self, run: bytes) -> None:
        opening = self.format.plain
        lines = run[len(opening) - 1 : -2].replace(b"\n\n" + opening, b"\n{")
        chunks: list[Chunk] | None = [] if self.journaled else None
        try:
            self._output += self.format.output_of(lines, chunks)
        except _NOT_EVENTS:
            # One of them is something else: each on its own says which.
            for data in payloads(run):
                self._take(data, late=True)
        else:
            self._chunks += chunks or ()
