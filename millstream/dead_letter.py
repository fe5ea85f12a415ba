"""Dead letters: the headers that give the reason, and the envelope in which a record leaves the pipeline as JSON.

A vertex that gives up a record adds the headers; the record itself does not change. A sink writes the record and its
headers as an envelope, which can hold any record, and `millstream deadletters` reads it back. Pure.

    {"reason": ..., "code": ..., "detail": ...,                                                  of dead letters only
     "vertex": ..., "lane": ..., "position": ..., "run": ...,
     "id": ..., "eventTime": ..., "keys": [...], "headers": {...}, "headersBase64": {...},
     "value": ... or "valueBase64": ...}

Absent and empty members are left out, except `eventTime` and the value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.json_parser import parse_json

REASON_HEADER = "millstream-dead-letter-reason"
"""The reason, on one line."""
CODE_HEADER = "millstream-dead-letter-code"
"""The code in the catalogue of errors, such as MS-3005, if the failure has one."""
DETAIL_HEADER = "millstream-dead-letter-detail"
"""The stack trace, or other details that a function gave."""
PLACE_HEADER = "millstream-dead-letter-at"
"""The <pipeline>/<vertex>/<lane> that gave up the record."""
POSITION_HEADER = "millstream-dead-letter-position"
"""<vertex>/<edge>/<partition>/<sequence>/<index> of the record in the buffer that the vertex reads; in a source, how
far it had read."""
RUN_HEADER = "millstream-dead-letter-run"
"""The run of the ledger that the position refers to. It changes when the pipeline is started over."""

DEAD_LETTER_HEADERS = (REASON_HEADER, CODE_HEADER, DETAIL_HEADER, PLACE_HEADER, POSITION_HEADER, RUN_HEADER)

DEAD_LETTER_MARK = b"millstream-dead-letter-"
"""What all of them begin with, as it appears in a column of headers."""

REASON_BYTES_MAX = 1024
DETAIL_BYTES_MAX = 8192
"""Limits of those headers: the details that a function gives must not make a record too large to send."""

_OF_DEAD_LETTERS = ("reason", "code", "detail", "vertex", "lane", "position", "run")
MEMBERS = (
    *_OF_DEAD_LETTERS,
    *("id", "eventTime", "keys", "headers", "headersBase64", "value", "valueBase64"),
)
"""All members that an envelope may have, in order."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
envelope_line = json.JSONEncoder(ensure_ascii=False).encode
"""An envelope, or a part of one, as JSON on one line, without a line end."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A record as it left the pipeline, with what happened to it."""

    value: bytes
    event_time_us: int
    keys: tuple[str, ...] = ()
    headers: Mapping[str, bytes] = field(default_factory=dict)
    """The user's headers, without those of dead letters."""
    id: str | None = None
    reason: str = ""
    """The reason; empty for a record that is not a dead letter."""
    code: str = ""
    detail: str = ""
    vertex: str = ""
    """The vertex that gave up the record."""
    lane: str = ""
    position: str = ""
    run: str = ""


def header_of(text: str, bytes_max: int) -> bytes:
    """The beginning of an external text, as a header's value."""
    data = text.encode(errors="backslashreplace")
    return data if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore").encode()


def headers_of(
    reason: str, detail: str, place: str, *, position: str = "", run: str = "", code: str = ""
) -> dict[str, bytes]:
    """The headers of a dead letter; `place` is <pipeline>/<vertex>/<lane>."""
    headers = {
        REASON_HEADER: header_of(reason, REASON_BYTES_MAX),
        CODE_HEADER: code.encode(),
        DETAIL_HEADER: header_of(detail, DETAIL_BYTES_MAX),
        PLACE_HEADER: place.encode(),
        POSITION_HEADER: header_of(position, REASON_BYTES_MAX),
        RUN_HEADER: run.encode(),
    }
    return {name: value for name, value in headers.items() if value}


def envelope_of(
    value: bytes, event_time_us: int, keys: Sequence[bytes], headers: Mapping[str, bytes], record_id: str
) -> dict[str, Any]:
    """A record's envelope, as JSON values. Absent members are left out."""
    envelope: dict[str, Any] = {}
    if REASON_HEADER in headers or PLACE_HEADER in headers:
        reason, code, detail, place, position, run = (
            headers.get(name, b"").decode(errors="replace") for name in DEAD_LETTER_HEADERS
        )
        _, _, rest = place.partition("/")
        vertex, _, lane = rest.partition("/")
        members = (reason, code, detail, vertex, lane, position, run)
        envelope.update((name, text) for name, text in zip(_OF_DEAD_LETTERS, members, strict=True) if text)
    if record_id:
        envelope["id"] = record_id
    envelope["eventTime"] = time_text(event_time_us)
    if keys:
        envelope["keys"] = [part.decode(errors="replace") for part in keys]
    own, binary = _header_texts(headers)
    if own:
        envelope["headers"] = own
    if binary:
        envelope["headersBase64"] = binary
    try:
        envelope["value"] = value.decode()
    except UnicodeDecodeError:
        envelope["valueBase64"] = base64.b64encode(value).decode()
    return envelope


def read_envelope(text: str | bytes) -> Envelope:
    """Inverse of `envelope_line`. Raises `ValueError` with what is wrong."""
    try:
        written = parse_json(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(written, dict) or "eventTime" not in written or not {"value", "valueBase64"} & written.keys():
        raise ValueError("not an envelope: a JSON object with `eventTime` and `value` or `valueBase64`")
    try:
        value = base64.b64decode(written["valueBase64"], validate=True) if "valueBase64" in written else None
        headers = {name: content.encode() for name, content in written.get("headers", {}).items()}
        for name, content in written.get("headersBase64", {}).items():
            headers[name] = base64.b64decode(content, validate=True)
        record_id = written.get("id")
        keys = tuple(str(part) for part in written.get("keys", ()))
        "".join((*keys, *headers, record_id or "")).encode()
        return Envelope(
            value=written["value"].encode() if value is None else value,
            event_time_us=_time_us(written["eventTime"]),
            keys=keys,
            headers=headers,
            id=record_id,
            **{name: str(written.get(name, "")) for name in _OF_DEAD_LETTERS},
        )
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not an envelope: {error}") from None


def _header_texts(headers: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str]]:
    """The user's headers that are text, and the other ones of the user in base64."""
    texts: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, value in headers.items():
        if name in DEAD_LETTER_HEADERS:
            continue
        try:
            texts[name] = value.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(value).decode()
    return texts, binary


def time_text(time_us: int) -> str:
    """The time in RFC 3339 with microseconds; the plain number if the calendar cannot represent it."""
    second = _second_text(time_us // MICROSECONDS)
    return f"{second}.{time_us % MICROSECONDS:06}Z" if second else str(time_us)


@lru_cache(maxsize=4096)
def _second_text(time_s: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=time_s)).isoformat().removesuffix("+00:00")
    except OverflowError:
        return ""


def _time_us(written: str) -> int:
    if written.removeprefix("-").isdecimal():
        time_us = int(written)
        if not START_OF_TIME_US <= time_us <= END_OF_TIME_US:
            raise ValueError(f"{written} is not a time in microseconds")
        return time_us
    return (datetime.fromisoformat(written) - _EPOCH) // timedelta(microseconds=1)
