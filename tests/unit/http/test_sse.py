"""Streams of server-sent events, however their bytes arrive."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.http.sse import MAX_EVENT_BYTES, SseSplitter, payloads
from shoal.policy.outcomes import LegFailed, Outcome

ENDINGS = [b"\n\n", b"\r\n\r\n", b"\n\r\n"]
TEXTS = st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b)


@given(st.lists(st.tuples(TEXTS, st.sampled_from(ENDINGS)), max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_events_come_whole_however_the_bytes_are_cut(
    events: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    raw = b": comment\r\n\r\n" + b"".join(b"data: " + text + ending for text, ending in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    splitter, whole = SseSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        whole.append(splitter.feed(raw[start:end]))
        assert not whole[-1] or whole[-1].endswith(b"\n\n") or whole[-1].endswith(b"\n\r\n")
    assert b"".join(whole) == raw
    assert [payload for run in whole for payload in payloads(run)] == [t.strip() for t, _ in events if t.strip()]


def test_events_that_are_whole_come_at_once() -> None:
    splitter = SseSplitter()
    pieces = [b"data: 1\n", b"\ndata: 2\n\nda", b"ta: 3\r", b"\n\r\n", b"data: 4\n\n"]
    assert [payloads(splitter.feed(piece)) for piece in pieces] == [[], [b"1", b"2"], [], [b"3"], [b"4"]]


def test_an_event_without_end_is_refused_and_costs_no_more_than_its_bytes() -> None:
    splitter, piece = SseSplitter(), b"x" * 4096
    begun = time.process_time()
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        assert splitter.feed(piece) == b""
    # Searching all of it again for each piece would take half a minute.
    assert time.process_time() - begun < 5
    with pytest.raises(LegFailed, match="more than 16777216 bytes") as failure:
        splitter.feed(piece)
    assert failure.value.outcome is Outcome.REPLICA_FAULT
