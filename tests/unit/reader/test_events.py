"""Event streams, byte by byte: the same events wherever the bytes are cut."""

from __future__ import annotations

import pytest

from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.sse.source.events import Event, EventParser

STREAM = (
    b"\xef\xbb\xbf: a comment\nretry: 1500\n\n"
    b"data: one\nid: 1\n\n"
    b"event: add\r\ndata: two\r\ndata:  lines\r\nid: 2\r\n\r\n"
    b"data\rid:3\r\r"
    b"id: 4\n\n"
    b"id: with\0null\ndata: no id\n\n"
    b"unknown: field\n\n"
    b"data: never ended\n"
)
EVENTS = [
    Event("message", b"one", "1", 0),
    Event("add", b"two\n lines", "2", 0),
    Event("message", b"", "3", 0),
    Event("message", None, "4", 0),
    Event("message", b"no id", None, 0),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_wherever_the_bytes_are_cut(size: int) -> None:
    parser = EventParser()
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS
    assert parser.retry_s == 1.5


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize("lines", [1, 2])
def test_an_event_that_is_too_large_is_cut_and_the_next_one_is_whole(lines: int) -> None:
    parser, events = EventParser(), list[Event]()
    line = b"x" * (RECORD_BYTES_MAX // lines + 100_000)
    data = b"".join(b"data: " + line + b"\n" for _ in range(lines)) + b"\ndata: small\n\n"
    for start in range(0, len(data), 65_536):
        events += parser.feed(data[start : start + 65_536])
        assert sum(map(len, parser._rest)) <= RECORD_BYTES_MAX + 1024
    large, small = events
    assert large.whole_size > RECORD_BYTES_MAX
    assert large.data is not None
    assert len(large.data) <= 1024
    assert small == Event("message", b"small", None, 0)
