"""From one HTTP request to records. Pure.

Above it: `http`, which has read and allowed the request. What is wrong with a request raises `RequestRefused` with the
status and the reason in the answer.

    Content-Type: application/x-ndjson    a JSON value per line, a record each
    Content-Type: application/json        an array is a batch, a record per element; anything else is one record
    any other                             the body is one record, whatever it is
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from millstream.extract import Extraction, key_text, member, time_parser
from millstream.limits import KIB, RECORD_BYTES_MAX
from millstream_reader.sources.parsing import checked_json

ID_BYTES_MAX = 256
"""Longest record id. Ids are remembered, so they cannot be of any size."""

_UNPACKED_BYTES = 256 * KIB
"""Unpacked at a time, so that a small body that unpacks to a large one is noticed in time."""
_ID_HEADERS = ("x-millstream-id", "x-numaflow-id")
_ID_FIELD_HEADER = "x-millstream-id-field"
_TIME_HEADERS = ("x-millstream-event-time", "x-numaflow-event-time")
_KEYS_HEADERS = ("x-millstream-keys", "x-numaflow-keys")
_OURS = frozenset((*_ID_HEADERS, _ID_FIELD_HEADER, *_TIME_HEADERS, *_KEYS_HEADERS))
_TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
_LINE_TYPES = frozenset(("application/x-ndjson", "application/ndjson", "application/jsonl"))

_parse_epoch_ms = time_parser("epoch_ms")


class RequestRefused(Exception):
    """The request cannot be taken; nothing of it was."""

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class HttpRecord:
    """One record of a request."""

    value: bytes
    event_time_us: int
    keys: tuple[bytes, ...]
    headers: Mapping[str, bytes]
    id: bytes
    id_is_made_up: bool
    """The sender gave none."""

    @property
    def size(self) -> int:
        """Bytes in the columns."""
        headers = sum(len(name) + len(value) for name, value in self.headers.items())
        return len(self.value) + sum(map(len, self.keys)) + headers + len(self.id) + 16


def read_records(
    body: bytes, content_type: str, headers: Mapping[str, str], extraction: Extraction, *, now_us: int
) -> list[HttpRecord]:
    """The records of a request whose `headers` have lower-case names. Errors: `RequestRefused`, with 400 or 413."""
    values, places = _values(body, content_type)
    carried = _carried_headers(headers)
    time_us = _header_time_us(headers, extraction, now_us)
    keys = _header_keys(headers)
    id_field = headers.get(_ID_FIELD_HEADER)
    given = _first(headers, _ID_HEADERS, "")
    # Made up, so that they are different; sent again, the records would have others.
    ids = _ids(given or str(uuid4()), values, batch=places is not None)
    is_json = places is not None or content_type == "application/json"
    reads_value = is_json or extraction.reads_value or id_field is not None
    records = []
    for index, value in enumerate(values):
        try:
            item: Any = checked_json(value) if reads_value else None
            record = HttpRecord(
                value=value,
                event_time_us=extraction.event_time_us(item) if extraction.time_field is not None else time_us,
                keys=extraction.keys(item) if extraction.key_fields else keys,
                headers=carried,
                id=_checked_id(key_text(member(item, id_field)) if id_field is not None else ids[index]),
                id_is_made_up=not given and id_field is None,
            )
        except ValueError as error:
            raise RequestRefused(400, str(error) if places is None else f"{places}{index + 1}: {error}") from None
        if record.size > RECORD_BYTES_MAX:
            raise RequestRefused(413, f"a record has {record.size} bytes; the limit is {RECORD_BYTES_MAX}")
        records.append(record)
    return records


class Unpacker:
    """Unpacks the parts of a body with some Content-Encoding, in pieces of a bounded size."""

    def __init__(self, encoding: str) -> None:
        """Errors: `RequestRefused` for an encoding that is not known."""
        encoding = encoding.lower()
        if encoding not in ("", "identity", "gzip", "deflate"):
            raise RequestRefused(415, f"the Content-Encoding {encoding!r} is not known; use gzip, deflate or none")
        self._zlib = None
        if encoding in ("gzip", "deflate"):
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))

    def add(self, part: bytes) -> Iterator[bytes]:
        """What `part` unpacks to. Errors: `zlib.error`."""
        if self._zlib is None:
            yield part
            return
        while part:
            yield self._zlib.decompress(part, _UNPACKED_BYTES)
            part = self._zlib.unconsumed_tail

    def finish(self) -> None:
        """The body is over. Errors: `zlib.error` when what was packed is not."""
        if self._zlib is not None and (not self._zlib.eof or self._zlib.unused_data):
            raise zlib.error("the packed body is cut off, or something follows it")


def _values(body: bytes, content_type: str) -> tuple[list[bytes], str | None]:
    """The values, and for a batch what its parts are called in messages."""
    if content_type in _LINE_TYPES:
        return [line for piece in body.split(b"\n") if (line := piece.strip())], "record "
    if content_type == "application/json" and body.lstrip()[:1] == b"[":
        return _elements(body), "element "
    return [body], None


def _elements(body: bytes) -> list[bytes]:
    """The elements of a JSON array, each as it is written."""
    decoder = json.JSONDecoder()
    elements = []
    try:
        # Validates the whole, so that what follows only has to find the ends of elements.
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
        raise RequestRefused(400, f"the body is not a JSON array: {error}") from None
    return elements


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _first(headers: Mapping[str, str], names: Sequence[str], default: str) -> str:
    return next((headers[name] for name in names if name in headers), default)


def _carried_headers(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Headers of the request that are headers of its records: the sender's own and the trace context."""
    return {
        name: _header_bytes(value)
        for name, value in headers.items()
        if name in _TRACE_HEADERS or (name.startswith("x-") and name not in _OURS)
    }


def _header_bytes(value: str) -> bytes:
    """As they were sent: what is not UTF-8 comes as lone surrogates."""
    return value.encode(errors="surrogateescape")


def _header_keys(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    try:
        return tuple(part.encode() for part in _first(headers, _KEYS_HEADERS, "").split(",") if part)
    except UnicodeEncodeError:
        raise RequestRefused(400, f"the header {_KEYS_HEADERS[0]} is not UTF-8") from None


def _header_time_us(headers: Mapping[str, str], extraction: Extraction, now_us: int) -> int:
    try:
        if extraction.time_header is not None:
            return extraction.header_time_us({name: _header_bytes(value) for name, value in headers.items()})
        written = _first(headers, _TIME_HEADERS, "")
        return _parse_epoch_ms(written) if written else now_us
    except ValueError as error:
        raise RequestRefused(400, str(error)) from None


def _ids(given: str, values: Sequence[bytes], *, batch: bool) -> list[str]:
    return [f"{given}#{index}" for index in range(len(values))] if batch else [given]


def _checked_id(record_id: str) -> bytes:
    encoded = record_id.encode()
    if not 0 < len(encoded) <= ID_BYTES_MAX:
        raise ValueError(f"the record id has {len(encoded)} bytes; 1 to {ID_BYTES_MAX} are allowed")
    return encoded
