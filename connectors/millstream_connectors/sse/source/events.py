"""Parses the bytes of an event stream to events, as the HTML standard defines. Pure.

    chunk ─► lines (CR, LF or both) ─► fields: event, data, id, retry ─► an empty line ends the event

An event in memory is never larger than a record may be, whatever the server sends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.shared.messages import SHOWN_BYTES

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_FIELD_MAX = RECORD_BYTES_MAX + 1024
"""Bytes of a line that are kept."""


class Event(NamedTuple):
    """The lines between two empty lines."""

    kind: str
    """Its type, `message` by default."""
    data: bytes | None
    """Its data; None if it has none and only advances the stream."""
    event_id: str | None
    """Its own `id`; None if it has none."""
    whole_size: int
    """Full size in bytes of data that is too large and was truncated; 0 if it is complete."""


class EventParser:
    """The parser of one connection."""

    def __init__(self) -> None:
        self.retry_s: float | None = None
        """How long the server asks a client to wait before it reconnects."""
        self._begun = False
        self._after_cr = False
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._kind = ""
        self._id: str | None = None
        self._data: list[bytes] = []
        self._size = 0
        self._cut = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in this chunk."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return
        self._after_cr = chunk.endswith(b"\r")
        first, *lines = _LINE_END.split(chunk)
        last = lines.pop()
        self._keep(first)
        lines.insert(0, b"".join(self._rest))
        cut = self._rest_size > _FIELD_MAX
        self._rest, self._rest_size = [], 0
        for line in lines:
            event = self._line(line, cut=cut)
            cut = False
            if event is not None:
                yield event
        self._keep(last)

    def _keep(self, part: bytes) -> None:
        """Add a part of a line whose end has not arrived."""
        left = _FIELD_MAX - self._rest_size
        if left > 0 and part:
            self._rest.append(part[:left])
        self._rest_size += len(part)

    def _line(self, line: bytes, *, cut: bool) -> Event | None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BOM)
        if not line:
            return self._ended()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add(value, cut=cut)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self.retry_s = int(value[:18]) / 1000
        return None

    def _add(self, value: bytes, *, cut: bool) -> None:
        self._size += len(value) + bool(self._data)
        self._cut = self._cut or cut or self._size > RECORD_BYTES_MAX
        self._data.append(value[:SHOWN_BYTES] if self._cut else value)
        if self._cut:
            self._data = [b"\n".join(self._data)[:SHOWN_BYTES]]

    def _ended(self) -> Event | None:
        data = b"\n".join(self._data) if self._data else None
        event = Event(self._kind or "message", data, self._id, self._size if self._cut else 0)
        self._kind, self._id, self._data, self._size, self._cut = "", None, [], 0, False
        return event if event.data is not None or event.event_id is not None else None
