"""Records as messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from millstream_connectors.shared.carried import EVENT_TIME, KEYS, OURS, keys_text, time_text
from millstream_connectors.shared.converting import RefusedRecordError, convert_each
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_writer.sink import SinkFrame

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
    ids = repeat("", frame.records) if run is None else item.record_ids()

    def put(value: bytes, keys: Sequence[bytes], time_us: int, given: Mapping[str, bytes], record_id: str) -> Put:
        headers = _headers(given)
        if keys:
            headers[KEYS] = keys_text(keys)
        headers[EVENT_TIME] = time_text(time_us)
        if run is not None:
            headers[MESSAGE_ID] = f"{run}/{record_id}"
        size = len(value) + sum(len(name) + len(text) + 4 for name, text in headers.items()) + _OVERHEAD_BYTES
        if size > bytes_max:
            raise RefusedRecordError(TOO_LARGE, f"it has {size} bytes with its headers; the limit is {bytes_max}")
        return Put(value, headers)

    columns = zip(frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), ids, strict=True)
    return convert_each(columns, put)


def _headers(given: Mapping[str, bytes]) -> dict[str, str]:
    """Raises `RefusedRecordError`."""
    headers = {}
    for name, value in given.items():
        if name.lower().startswith(_RESERVED):
            continue
        if _NAME.fullmatch(name) is None:
            raise RefusedRecordError(
                HEADER, f"{name[:80]!r} is not a valid header name: printable ASCII without a colon or space"
            )
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise RefusedRecordError(HEADER, f"the value of {name!r} is not UTF-8 text") from None
        if "\n" in text or "\r" in text or text != text.strip():
            raise RefusedRecordError(HEADER, f"the value of {name!r} begins or ends with a space, or has several lines")
        headers[name] = text
    return headers
