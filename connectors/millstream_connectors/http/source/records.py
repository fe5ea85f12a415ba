"""Converts one HTTP request to records. Pure.

Above it: `http`, which has read and authorized the request. An invalid request raises `RequestRefusedError` with the
status and the reason for the answer.

    Content-Type: application/x-ndjson    a JSON value per line, a record each
    Content-Type: application/json        an array is a batch, a record per element; anything else is one record
    any other                             the body is one record
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from millstream.extract import Extraction, key_text, member, time_parser
from millstream.frame import Frame
from millstream.json_text import all_json, elements_of, lines_of
from millstream.limits import KIB, RECORD_BYTES_MAX
from millstream.values import Values
from millstream_connectors.shared.parsing import checked_json
from millstream_udf import columns

ID_BYTES_MAX = 256
"""Longest record id, in bytes. Ids are remembered, so their size is bounded."""

_UNPACKED_BYTES = 256 * KIB
"""Bytes decompressed at a time, so that a small body with a huge content is noticed early."""
_ID_HEADERS = ("x-millstream-id", "x-numaflow-id")
_ID_FIELD_HEADER = "x-millstream-id-field"
_TIME_HEADERS = ("x-millstream-event-time", "x-numaflow-event-time")
_KEYS_HEADERS = ("x-millstream-keys", "x-numaflow-keys")
_OURS = frozenset((*_ID_HEADERS, _ID_FIELD_HEADER, *_TIME_HEADERS, *_KEYS_HEADERS))
_TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
_LINE_TYPES = frozenset(("application/x-ndjson", "application/ndjson", "application/jsonl"))

_parse_epoch_ms = time_parser("epoch_ms")


class RequestRefusedError(Exception):
    """The request cannot be accepted; none of its records was."""

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """Records of one request, in the columns of a frame."""

    frame: Frame | None
    """None if there are none."""
    ids_are_made_up: bool
    """Whether the ids were generated because the sender gave none."""


def read_records(
    body: bytes, content_type: str, headers: Mapping[str, str], extraction: Extraction, *, now_us: int
) -> RequestRecords:
    """The records of a request whose `headers` have lower-case names. Raises `RequestRefusedError` with 400 or 413."""
    reader = _Reader(headers, extraction, now_us)
    frame = reader.read_lines(body) if content_type in _LINE_TYPES else None
    if frame is None:
        frame = _read_values(reader, body, content_type)
    # Records that fit together also fit one by one.
    if frame is not None and frame.size > RECORD_BYTES_MAX:
        large = next((size for size in frame.record_sizes() if size > RECORD_BYTES_MAX), None)
        if large is not None:
            raise RequestRefusedError(413, f"a record has {large} bytes; the limit is {RECORD_BYTES_MAX}")
    return RequestRecords(frame, reader.ids_are_made_up)


def _read_values(reader: _Reader, body: bytes, content_type: str) -> Frame | None:
    values, places, known = _values(body, content_type)
    batch, checks_json = places is not None, not known and (places is not None or content_type == "application/json")
    try:
        return reader.read(values, 0, batch=batch, checks_json=checks_json) if values else None
    except ValueError:
        # One by one, to find the first invalid one.
        for index, value in enumerate(values):
            try:
                reader.read([value], index, batch=batch, checks_json=checks_json)
            except ValueError as error:
                reason = str(error) if places is None else f"{places}{index + 1}: {error}"
                raise RequestRefusedError(400, reason) from None
        raise


class _Reader:
    """What a request says about its records beside their values, and the frames of both."""

    def __init__(self, headers: Mapping[str, str], extraction: Extraction, now_us: int) -> None:
        """Errors: `RequestRefusedError`."""
        self._extraction = extraction
        self._carried = _carried_headers(headers)
        self._now_us = now_us
        self._time_us = _header_time_us(headers, extraction, now_us)
        self._keys = _header_keys(headers)
        self._id_field = headers.get(_ID_FIELD_HEADER)
        given = _first(headers, _ID_HEADERS)
        self.ids_are_made_up = not given and self._id_field is None
        # Random, so that they are unique; a repeated request would get other ids.
        self._id = given or str(uuid4())
        self._reads_items = extraction.reads_value or self._id_field is not None

    def read_lines(self, body: bytes) -> Frame | None:
        """All lines of JSON lines, without a look at the single ones; None if that is not possible."""
        if self._reads_items or (values := lines_of(body)) is None:
            return None
        try:
            return self._frame(values, 0, (), batch=True)
        except ValueError:
            return None

    def read(self, values: Sequence[bytes], first: int, *, batch: bool, checks_json: bool) -> Frame:
        """These values, of which there is at least one; `first` is the index of the first one. `checks_json`: whether
        they have to be JSON, and may not be. Errors: `ValueError`."""
        items: list[Any] = []
        if self._reads_items:
            items = list(map(checked_json, values))
        elif checks_json and not all_json(values):
            # Each value is released immediately.
            deque(map(checked_json, values), maxlen=0)
        return self._frame(values, first, items, batch=batch)

    def _frame(self, values: Sequence[bytes], first: int, items: Sequence[Any], *, batch: bool) -> Frame:
        extraction, count = self._extraction, len(values)
        times = array("q", [self._time_us]) * count
        earliest = latest = self._time_us
        if extraction.time_field is not None:
            times = array("q", map(extraction.event_time_us, items))
            earliest, latest = min(times), max(times)
        keys: Sequence[tuple[bytes, ...]] = [self._keys] * count if self._keys else ()
        if extraction.key_fields:
            keys = list(map(extraction.keys, items))
        return Frame(
            records=count,
            event_time_min_us=earliest,
            event_time_max_us=latest,
            ingest_time_us=self._now_us,
            contents=Values.of(values),
            event_times_column=columns.pack_times(times),
            keys_column=columns.pack_lists(keys),
            headers_column=columns.pack_headers([self._carried] * count) if self._carried else b"",
            ids_column=self._ids_column(first, count, items, batch=batch),
        )

    def _ids_column(self, first: int, count: int, items: Sequence[Any], *, batch: bool) -> bytes:
        if self._id_field is not None:
            ids = [key_text(member(item, self._id_field)).encode() for item in items]
            _check_ids(ids)
            return columns.pack_bytes(ids)
        given = self._id.encode()
        if not batch:
            _check_ids([given])
            return columns.pack_bytes([given])
        # None is longer than the last one.
        _check_ids([b"%b#%d" % (given, first + count - 1)])
        return columns.pack_numbered(given + b"#", first, first + count)


class Unpacker:
    """Decompresses the parts of a body with a Content-Encoding, in pieces of a bounded size."""

    def __init__(self, encoding: str) -> None:
        """Errors: `RequestRefusedError` for an unknown encoding."""
        encoding = encoding.lower()
        if encoding not in ("", "identity", "gzip", "deflate"):
            raise RequestRefusedError(
                415, f"the Content-Encoding {encoding!r} is not supported; use gzip, deflate or none"
            )
        self._zlib = None
        if encoding in ("gzip", "deflate"):
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))

    def add(self, part: bytes) -> Iterator[bytes]:
        """The decompressed content of `part`. Errors: `zlib.error`."""
        if self._zlib is None:
            yield part
            return
        while part:
            yield self._zlib.decompress(part, _UNPACKED_BYTES)
            part = self._zlib.unconsumed_tail

    def finish(self) -> None:
        """Called at the end of the body. Errors: `zlib.error` if the compressed data is not complete."""
        if self._zlib is not None and (not self._zlib.eof or self._zlib.unused_data):
            raise zlib.error("the compressed body is truncated, or is followed by more data")


def _values(body: bytes, content_type: str) -> tuple[list[bytes], str | None, bool]:
    """The values; for a batch, the name of its parts in messages; and whether the values are known to be JSON."""
    if content_type in _LINE_TYPES:
        return list(filter(None, map(bytes.strip, body.split(b"\n")))), "record ", False
    if content_type == "application/json" and body.lstrip()[:1] == b"[":
        return _elements(body), "element ", True
    return [body], None, False


def _elements(body: bytes) -> list[bytes]:
    """The elements of a JSON array, each as unchanged text."""
    if (found := elements_of(body)) is not None:
        return found
    decoder = json.JSONDecoder()
    elements = []
    try:
        # Validates the whole array, so that the following code only has to find the ends of elements.
        checked_json(body)
        text = body.decode()
        at = _skip_space(text, text.index("[") + 1)
        while text[at] != "]":
            _, end = decoder.raw_decode(text, at)
            elements.append(text[at:end].encode())
            at = _skip_space(text, end)
            if text[at] == ",":
                at = _skip_space(text, at + 1)
    except ValueError as error:
        raise RequestRefusedError(400, f"the body is not a JSON array: {error}") from None
    return elements


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _first(headers: Mapping[str, str], names: Sequence[str]) -> str:
    return next((headers[name] for name in names if name in headers), "")


def _carried_headers(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Headers of the request that become headers of its records: the sender's own and the trace context."""
    return {
        name: _header_bytes(value)
        for name, value in headers.items()
        if name in _TRACE_HEADERS or (name.startswith("x-") and name not in _OURS)
    }


def _header_bytes(value: str) -> bytes:
    """The bytes as they were sent: those that are not UTF-8 arrive as lone surrogates."""
    return value.encode(errors="surrogateescape")


def _header_keys(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    try:
        return tuple(part.encode() for part in _first(headers, _KEYS_HEADERS).split(",") if part)
    except UnicodeEncodeError:
        raise RequestRefusedError(400, f"the header {_KEYS_HEADERS[0]} is not UTF-8") from None


def _header_time_us(headers: Mapping[str, str], extraction: Extraction, now_us: int) -> int:
    try:
        if extraction.time_header is not None:
            return extraction.header_time_us({name: _header_bytes(value) for name, value in headers.items()})
        written = _first(headers, _TIME_HEADERS)
        return _parse_epoch_ms(written) if written else now_us
    except ValueError as error:
        raise RequestRefusedError(400, str(error)) from None


def _check_ids(ids: Sequence[bytes]) -> None:
    lengths = list(map(len, ids))
    if ids and not 0 < min(lengths) <= max(lengths) <= ID_BYTES_MAX:
        length = next(length for length in lengths if not 0 < length <= ID_BYTES_MAX)
        raise ValueError(f"the record id has {length} bytes; 1 to {ID_BYTES_MAX} are allowed")
