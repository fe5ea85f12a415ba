"""Frames: records held by columns. Encoding, cutting, joining; no I/O.

A `Frame` keeps its columns encoded and decodes one only when it is asked for, so a process that passes
frames on pays per frame, not per record. The format stands in `proto/millstream/frame/v1/frame.proto`; the column
codecs are the SDK's, so both sides of a UDF stream agree by construction.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError
from millstream.record import Record
from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2

_T = TypeVar("_T")

KEY_SEPARATOR = b"\x1f"
"""Joins the parts of a key for the partition hash."""


_OFFSET_BYTES = 4
_TIME_BYTES = 8
_ITEM_BYTES = 6
"""Tag and length of one item of a repeated field."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of records, columns encoded. `b""` is an absent column."""

    records: int
    """Number of records, at least 1."""
    event_time_min_us: int
    event_time_max_us: int
    ingest_time_us: int
    """When the oldest record entered the pipeline, wall clock."""
    values_column: bytes
    event_times_column: bytes
    keys_column: bytes = b""
    headers_column: bytes = b""
    ids_column: bytes = b""
    traceparent: str = ""

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return (
            len(self.values_column)
            + len(self.event_times_column)
            + len(self.keys_column)
            + len(self.headers_column)
            + len(self.ids_column)
        )

    def encode(self) -> bytes:
        """The bytes that are stored and sent."""
        return frame_pb2.SealedFrame(
            info=frame_pb2.FrameInfo(
                records=self.records,
                event_time_min_us=self.event_time_min_us,
                event_time_max_us=self.event_time_max_us,
                ingest_time_us=self.ingest_time_us,
                traceparent=self.traceparent,
            ),
            values=self.values_column,
            event_times_us=self.event_times_column,
            keys=self.keys_column,
            headers=self.headers_column,
            ids=self.ids_column,
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Frame:
        """Inverse of `encode`. Raises `DamageError` for bytes that are not a frame."""
        try:
            sealed = frame_pb2.SealedFrame.FromString(data)
        except DecodeError as error:
            raise DamageError(codes.FRAME_UNREADABLE, f"{len(data)} bytes are not a frame: {error}") from error
        info = sealed.info
        if info.records < 1 or len(sealed.event_times_us) != 8 * info.records:
            raise DamageError(
                codes.FRAME_UNREADABLE,
                f"a frame says it has {info.records} records, and has {len(sealed.event_times_us)} bytes of event "
                "times",
            )
        return cls(
            records=info.records,
            event_time_min_us=info.event_time_min_us,
            event_time_max_us=info.event_time_max_us,
            ingest_time_us=info.ingest_time_us,
            traceparent=info.traceparent,
            values_column=sealed.values,
            event_times_column=sealed.event_times_us,
            keys_column=sealed.keys,
            headers_column=sealed.headers,
            ids_column=sealed.ids,
        )

    def check(self) -> None:
        """Raises `ValueError` unless every column can be read: as many entries as records, offsets that rise, keys and
        ids in UTF-8. Makes no record."""
        columns.check_bytes(self.values_column, self.records)
        columns.check_lists(self.keys_column, self.records)
        columns.check_headers(self.headers_column, self.records)
        if self.ids_column:
            columns.check_bytes(self.ids_column, self.records, text=True)

    def values(self) -> list[bytes]:
        return columns.unpack_bytes(self.values_column)

    def event_times_us(self) -> array[int]:
        return columns.unpack_times(self.event_times_column)

    def keys(self) -> list[tuple[bytes, ...]]:
        """Key parts of each record, UTF-8."""
        return columns.unpack_lists(self.keys_column, self.records)

    def headers(self) -> list[dict[str, bytes]]:
        return columns.unpack_headers(self.headers_column, self.records)

    def ids(self) -> list[str] | None:
        """Ids that the source gave; None where it gives none."""
        encoded = self.id_bytes()
        return [item.decode() for item in encoded] if encoded is not None else None

    def id_bytes(self) -> list[bytes] | None:
        """The same, encoded."""
        return columns.unpack_bytes(self.ids_column) if self.ids_column else None

    def to_records(self) -> Iterator[Record]:
        """The records one by one: for tools and sinks that need them, not for the hot path."""
        ids: Sequence[str | None] = self.ids() or [None] * self.records
        rows = zip(self.values(), self.event_times_us(), self.keys(), self.headers(), ids, strict=True)
        for value, time_us, keys, headers, record_id in rows:
            yield Record(value, time_us, tuple(part.decode() for part in keys), headers, record_id)

    def take(self, indexes: Sequence[int]) -> Frame:
        """The records at `indexes` (not empty), in that order."""
        return self.split((indexes,))[0]

    def split(self, groups: Iterable[Sequence[int]]) -> list[Frame]:
        """A frame of the records at each group's indexes (not empty), in that order. Reads the columns once."""
        values, times = self.values(), self.event_times_us()
        keys = self.keys() if self.keys_column else None
        headers = self.headers() if self.headers_column else None
        ids = columns.unpack_bytes(self.ids_column) if self.ids_column else None
        return [
            build_frame(
                _pick(values, indexes),
                array("q", _pick(times, indexes)),
                ingest_time_us=self.ingest_time_us,
                keys=_pick(keys, indexes) if keys is not None else None,
                headers=_pick(headers, indexes) if headers is not None else None,
                ids=_pick(ids, indexes) if ids is not None else None,
                traceparent=self.traceparent,
            )
            for indexes in groups
        ]

    def record_sizes(self) -> list[int]:
        """Bytes each record takes in the columns, a little too much rather than too little."""
        sizes = [len(value) + _OFFSET_BYTES + _TIME_BYTES for value in self.values()]
        if self.keys_column:
            for index, keys in enumerate(self.keys()):
                sizes[index] += _OFFSET_BYTES + sum(len(part) + _OFFSET_BYTES for part in keys)
        if self.headers_column:
            for index, headers in enumerate(self.headers()):
                parts = chain.from_iterable((name.encode(), content) for name, content in headers.items())
                sizes[index] += _OFFSET_BYTES + sum(len(part) + _ITEM_BYTES for part in parts)
        if self.ids_column:
            for index, record_id in enumerate(columns.unpack_bytes(self.ids_column)):
                sizes[index] += len(record_id) + _OFFSET_BYTES
        return sizes

    def slice(self, start: int, stop: int) -> Frame:
        """Records `start` to `stop`, exclusive; the frame itself when that is all of it. Columns are cut at their
        offsets, so it costs what the slice holds, and no record of the rest is made."""
        if start == 0 and stop >= self.records:
            return self
        stop = min(stop, self.records)
        times = columns.unpack_times(self.event_times_column[_TIME_BYTES * start : _TIME_BYTES * stop])
        return replace(
            self,
            records=stop - start,
            event_time_min_us=min(times),
            event_time_max_us=max(times),
            values_column=columns.slice_bytes(self.values_column, start, stop),
            event_times_column=columns.pack_times(times),
            keys_column=columns.slice_lists(self.keys_column, start, stop),
            headers_column=columns.slice_headers(self.headers_column, start, stop),
            ids_column=columns.slice_bytes(self.ids_column, start, stop),
        )

    def traced(self, traceparent: str) -> Frame:
        """The same records under another trace context."""
        return replace(self, traceparent=traceparent)


def build_frame(
    values: Sequence[bytes],
    event_times_us: array[int],
    *,
    ingest_time_us: int,
    keys: Sequence[Sequence[bytes]] | None = None,
    headers: Sequence[Mapping[str, bytes]] | None = None,
    ids: Sequence[bytes] | None = None,
    traceparent: str = "",
) -> Frame:
    """A frame from columns of equal length, at least one record."""
    return Frame(
        records=len(values),
        event_time_min_us=min(event_times_us),
        event_time_max_us=max(event_times_us),
        ingest_time_us=ingest_time_us,
        values_column=columns.pack_bytes(values),
        event_times_column=columns.pack_times(event_times_us),
        keys_column=columns.pack_lists(keys) if keys is not None else b"",
        headers_column=columns.pack_headers(headers) if headers is not None else b"",
        ids_column=columns.pack_bytes(ids) if ids is not None else b"",
        traceparent=traceparent,
    )


def frame_of_records(records: Sequence[Record], *, ingest_time_us: int, traceparent: str = "") -> Frame:
    """A frame from records, at least one. Ids are kept when every record has one."""
    ids = [record.id for record in records]
    return build_frame(
        [record.value for record in records],
        array("q", [record.event_time_us for record in records]),
        ingest_time_us=ingest_time_us,
        keys=[[part.encode() for part in record.keys] for record in records],
        headers=[record.headers for record in records],
        ids=[record_id.encode() for record_id in ids if record_id is not None] if None not in ids else None,
        traceparent=traceparent,
    )


def join_frames(frames: Sequence[Frame]) -> Frame:
    """One frame of the records of all, in order. Ids are kept when every frame has them."""
    if len(frames) == 1:
        return frames[0]
    times = array("q")
    for frame in frames:
        times.extend(frame.event_times_us())
    any_keys = any(frame.keys_column for frame in frames)
    any_headers = any(frame.headers_column for frame in frames)
    all_ids = all(frame.ids_column for frame in frames)
    return build_frame(
        list(chain.from_iterable(frame.values() for frame in frames)),
        times,
        ingest_time_us=min(frame.ingest_time_us for frame in frames),
        keys=list(chain.from_iterable(frame.keys() for frame in frames)) if any_keys else None,
        headers=list(chain.from_iterable(frame.headers() for frame in frames)) if any_headers else None,
        ids=list(chain.from_iterable(columns.unpack_bytes(frame.ids_column) for frame in frames)) if all_ids else None,
        traceparent=next((frame.traceparent for frame in frames if frame.traceparent), ""),
    )


def partition_of(keys: Iterable[bytes], partitions: int) -> int:
    """The partition a record with these key parts goes to."""
    return zlib.crc32(KEY_SEPARATOR.join(keys)) % partitions


def _pick(items: Sequence[_T], indexes: Sequence[int]) -> list[_T]:
    return [items[index] for index in indexes]
