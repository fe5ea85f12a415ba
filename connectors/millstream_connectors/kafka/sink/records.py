"""Records of frames as Kafka messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from millstream.frame import Frame
from millstream.keys import key_of_text
from millstream_connectors.shared.converting import RefusedRecordError, convert_each
from millstream_connectors.shared.encoding_lane import key_of
from millstream_connectors.shared.kept import ConvertedRecords

MESSAGE_OVERHEAD_BYTES = 128
"""Maximum overhead of a message in its own batch, besides key, value and headers."""
_HEADER_OVERHEAD_BYTES = 10
_LEAST_US = 1000
"""Kafka has no times before 1970, and its client interprets 0 as "now"."""

Headers = list[tuple[str, str | bytes | None]]
Message = tuple[bytes, bytes | None, int, Headers | None]
"""Value, key, timestamp in milliseconds, headers."""

TOO_LARGE = "record too large for the topic"


def messages_of(frame: Frame, *, set_key: bool) -> Iterator[Message]:
    """The messages for a frame's records, in order."""
    keys: Iterator[bytes | None] = (
        map(_key_of, frame.keys()) if set_key and frame.keys_column else repeat(None, frame.records)
    )
    headers: Iterator[Headers | None] = (
        (list(of_one.items()) or None for of_one in frame.headers())
        if frame.headers_column
        else repeat(None, frame.records)
    )
    if frame.event_time_min_us >= _LEAST_US:
        times = [time_us // 1000 for time_us in frame.event_times_us()]
    else:
        times = [max(_LEAST_US, time_us) // 1000 for time_us in frame.event_times_us()]
    return zip(frame.values(), keys, times, headers, strict=True)


def _key_of(parts: tuple[bytes, ...]) -> bytes | None:
    """The key of a message: a single key has the bytes that it had at its source."""
    return key_of_text(parts[0]) if len(parts) == 1 else key_of(parts)


def convert(frame: Frame, bytes_max: int, *, set_key: bool) -> ConvertedRecords[Message]:
    """Converts a frame's records. Those that the topic cannot accept in any batch are refused."""
    messages = list(messages_of(frame, set_key=set_key))
    if frame.size + MESSAGE_OVERHEAD_BYTES <= bytes_max:
        return ConvertedRecords(range(frame.records), messages, ())

    def fitting(message: Message) -> Message:
        value, key, _, headers = message
        size = len(value) + len(key or b"") + MESSAGE_OVERHEAD_BYTES
        size += sum(len(name.encode()) + len(text or b"") + _HEADER_OVERHEAD_BYTES for name, text in headers or ())
        if size > bytes_max:
            detail = f"{size} bytes, but its max.message.bytes is {bytes_max}: raise that, or see `retryStrategy`"
            raise RefusedRecordError(TOO_LARGE, detail)
        return message

    return convert_each(zip(messages, strict=True), fitting)
