"""Records as messages with headers, which carry parts of a record besides its value. Pure.

Above it: sinks whose target has messages with headers, each in its own form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

from millstream_connectors.shared.converting import convert_each
from millstream_writer.sink import SinkFailure, SinkFrame

KEYS = "Millstream-Keys"
EVENT_TIME = "Millstream-Event-Time"
RECORD_ID = "Millstream-Id"
OURS = "millstream-"
"""Prefix of Millstream's own headers, in lower case; a record's headers with this prefix are omitted."""
HEADER = "header cannot be written"

P = TypeVar("P")


def converted(
    item: SinkFrame, make: Callable[[int, bytes, Sequence[bytes], int, Mapping[str, bytes], str], P]
) -> tuple[Sequence[P], list[SinkFailure]]:
    """The message for each record of a frame, and failures for those that cannot become messages.

    `make` gets the row of a record, its value, keys, event time in microseconds, headers and id. It raises
    `RefusedRecordError`, and any `ValueError` for headers that cannot be written.
    """
    frame = item.frame
    columns = (frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), item.record_ids())
    found = convert_each(zip(range(frame.records), *columns, strict=True), make, misfit=HEADER)
    return found.made, list(found.failures)


def given_headers(headers: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The headers of a record, without those of Millstream, which the message gets anew."""
    return ((name, value) for name, value in headers.items() if not name.lower().startswith(OURS))


def own_headers(keys: Sequence[bytes], time_us: int, name: str) -> dict[str, str]:
    """Millstream's headers of the message with the id `name`."""
    own = {RECORD_ID: name, EVENT_TIME: time_text(time_us)}
    if keys:
        own[KEYS] = keys_text(keys)
    return own


def keys_text(keys: Sequence[bytes]) -> str:
    """A record's keys as a JSON array."""
    return json.dumps([key.decode(errors="replace") for key in keys], ensure_ascii=True)


def time_text(time_us: int) -> str:
    """An event time in milliseconds."""
    return str(time_us // 1000)


def message_id(run: str, record_id: str, bytes_max: int) -> str:
    """Id of a record in a run, the same at every attempt; a digest if it would be longer than `bytes_max`."""
    return fitting(f"{run}/{record_id}", bytes_max)


def fitting(text: str, bytes_max: int) -> str:
    """The text itself; a digest if it has more bytes."""
    return text if len(text.encode()) <= bytes_max else blake2b(text.encode(), digest_size=32).hexdigest()
