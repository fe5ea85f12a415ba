"""Records as messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from millstream_connectors.shared.carried import EVENT_TIME, KEYS, OURS, keys_text, time_text
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_writer.sink import SinkFailure, SinkFrame

MESSAGE_ID = "Nats-Msg-Id"
TOO_LARGE = "record is too large for the stream"
HEADER = "header cannot be written"

_RESERVED = ("nats-", OURS)
"""Prefixes of headers that have a meaning for the server, or are Millstream's own."""
_NAME = re.compile(r"[!-9;-~]+")
_OVERHEAD_BYTES = 512
"""Space for the headers of a batch."""


class Put(NamedTuple):
    """The target's form of a record."""

    data: bytes
    headers: dict[str, str]


def convert(item: SinkFrame, bytes_max: int, run: str | None) -> ConvertedRecords[Put]:
    """What a frame's records become. `run`: messages have ids, which are unique to this run."""
    frame = item.frame
    rows: list[int] = []
    made: list[Put] = []
    failures: list[SinkFailure] = []
    ids = item.record_ids() if run is not None else None
    columns = zip(frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), strict=True)
    for row, (value, keys, time_us, given) in enumerate(columns):
        try:
            headers = _headers(given)
        except ValueError as error:
            failures.append(SinkFailure(row, HEADER, retryable=False, detail=str(error)))
            continue
        if keys:
            headers[KEYS] = keys_text(keys)
        headers[EVENT_TIME] = time_text(time_us)
        if ids is not None:
            headers[MESSAGE_ID] = f"{run}/{ids[row]}"
        size = len(value) + sum(len(name) + len(text) + 4 for name, text in headers.items()) + _OVERHEAD_BYTES
        if size > bytes_max:
            detail = f"it has {size} bytes with its headers; the limit is {bytes_max}"
            failures.append(SinkFailure(row, TOO_LARGE, retryable=False, detail=detail))
            continue
        rows.append(row)
        made.append(Put(value, headers))
    return ConvertedRecords(rows, made, failures)


def _headers(given: Mapping[str, bytes]) -> dict[str, str]:
    """Raises `ValueError`."""
    headers = {}
    for name, value in given.items():
        if name.lower().startswith(_RESERVED):
            continue
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name[:80]!r} is not a valid header name: printable ASCII without a colon or space")
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the value of {name!r} is not UTF-8 text") from None
        if any(char in text for char in "\r\n") or text != text.strip():
            raise ValueError(f"the value of {name!r} begins or ends with a space, or has several lines")
        headers[name] = text
    return headers
