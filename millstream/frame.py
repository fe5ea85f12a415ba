"""Frames: records stored by columns. Encoding, splitting and joining; no I/O.

A `Frame` keeps its columns encoded and decodes a column only when it is needed, so a process that passes frames on
pays per frame, not per record. `proto/millstream/frame/v1/frame.proto` describes the format. The column codecs are
those of the SDK, so both sides of a UDF stream agree by construction.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError
from millstream.record import Record
from millstream.values import Values, join_values
from millstream_udf import columns
from millstream_udf.columns import KEY_SEPARATOR as KEY_SEPARATOR
from millstream_udf.columns import partition_of as partition_of
from millstream_udf.fields import LARGE_BYTES, Data, field, without_large
from millstream_udf.wire.frame.v1 import frame_pb2

_COLUMNS = (2, 3, 4, 5, 6, 7)
"""The numbers of the fields of an encoded frame that are columns."""
_OFFSET_BYTES = 4
_TIME_BYTES = 8
_ITEM_BYTES = 6
"""Tag and length of one item of a repeated field."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of records with encoded columns. `b""` is an absent column."""

    records: int
    """Number of records, at least 1."""
    event_time_min_us: int
    event_time_max_us: int
    ingest_time_us: int
    """When the oldest record entered the pipeline, by the wall clock."""
    contents: Values
    event_times_column: bytes
    keys_column: bytes = b""
    headers_column: bytes = b""
    ids_column: bytes = b""
    traceparent: str = ""

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return (
            self.contents.size
            + len(self.event_times_column)
            + len(self.keys_column)
            + len(self.headers_column)
            + len(self.ids_column)
        )

    @property
    def form(self) -> bytes:
        """See `Values.form`."""
        return self.contents.form

    def encode(self) -> bytes:
        """The bytes to store and send: a `SealedFrame`."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes]:
        """The same in parts, for a message that contains a frame: joining its parts copies the columns only once."""
        info = frame_pb2.FrameInfo(
            records=self.records,
            event_time_min_us=self.event_time_min_us,
            event_time_max_us=self.event_time_max_us,
            ingest_time_us=self.ingest_time_us,
            traceparent=self.traceparent,
        )
        return [
            *field(1, info.SerializeToString()),
            *field(2, self.contents.column),
            *field(3, self.event_times_column),
            *field(4, self.keys_column),
            *field(5, self.headers_column),
            *field(6, self.ids_column),
            *field(7, self.contents.arrow),
        ]

    @classmethod
    def decode(cls, data: Data) -> Frame:
        """Inverse of `encode`. Raises `DamageError` for bytes that are not a frame."""
        rest, large = without_large(data, _COLUMNS) if len(data) >= LARGE_BYTES else (bytes(data), {})
        try:
            sealed = frame_pb2.SealedFrame.FromString(rest)
        except DecodeError as error:
            raise DamageError(codes.FRAME_UNREADABLE, f"{len(data)} bytes are not a frame: {error}") from error
        info = sealed.info
        apart = {number: bytes(column) for number, column in large.items()}
        frame = cls(
            records=info.records,
            event_time_min_us=info.event_time_min_us,
            event_time_max_us=info.event_time_max_us,
            ingest_time_us=info.ingest_time_us,
            traceparent=info.traceparent,
            contents=Values(apart.get(2, sealed.values), apart.get(7, sealed.arrow)),
            event_times_column=apart.get(3, sealed.event_times_us),
            keys_column=apart.get(4, sealed.keys),
            headers_column=apart.get(5, sealed.headers),
            ids_column=apart.get(6, sealed.ids),
        )
        if info.records < 1 or len(frame.event_times_column) != 8 * info.records:
            raise DamageError(
                codes.FRAME_UNREADABLE,
                f"a frame says it has {info.records} records, and has {len(frame.event_times_column)} bytes of event "
                "times",
            )
        return frame

    def check(self) -> None:
        """Raises `ValueError` unless every column can be read: as many entries as records, rising offsets, keys and ids
        in UTF-8. It builds no records. Raises `UserError` without the package that reads Arrow columns."""
        self.contents.check(self.records)
        columns.check_lists(self.keys_column, self.records)
        columns.check_headers(self.headers_column, self.records)
        if self.ids_column:
            columns.check_bytes(self.ids_column, self.records, text=True)

    def check_arrow(self) -> None:
        """See `Values.check_arrow`."""
        self.contents.check_arrow(self.records)

    def with_values(self) -> Frame:
        """The same records, with bytes in place of Arrow columns. Errors: as of `Values.as_bytes`."""
        contents = self.contents.as_bytes(self.records)
        return self if contents is self.contents else replace(self, contents=contents)

    def values(self) -> list[bytes]:
        return columns.unpack_bytes(self.contents.as_bytes(self.records).column)

    def event_times_us(self) -> array[int]:
        return columns.unpack_times(self.event_times_column)

    def keys(self) -> list[tuple[bytes, ...]]:
        """The key parts of each record, in UTF-8."""
        return columns.unpack_lists(self.keys_column, self.records)

    def headers(self) -> list[dict[str, bytes]]:
        return columns.unpack_headers(self.headers_column, self.records)

    def ids(self) -> list[str] | None:
        """The ids that the source gave; None if it gives none."""
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
        return self.split((array("I", indexes),))[0]

    def split(self, groups: columns.Groups) -> list[Frame]:
        """For each group, a frame of the records at its indexes (not empty), in that order."""
        parts = zip(
            groups,
            self.contents.split(self.records, groups),
            columns.split_times(self.event_times_column, groups),
            columns.split_lists(self.keys_column, self.records, groups),
            columns.split_headers(self.headers_column, self.records, groups),
            columns.split_bytes(self.ids_column, groups),
            strict=True,
        )
        return [self._part(len(group), *part) for group, *part in parts]

    def by_partition(self, partitions: int, *, keyless: int) -> list[tuple[int, Frame]]:
        """The partitions that the records go to by their keys, each with a frame of its records, in order. Records
        without keys go to the partition `keyless`."""
        if not self.keys_column:
            return [(keyless, self)]
        groups = columns.partition_lists(self.keys_column, self.records, partitions, keyless=keyless)
        chosen = [partition for partition, indexes in enumerate(groups) if indexes]
        parts = [self] if len(chosen) == 1 else self.split([groups[partition] for partition in chosen])
        return list(zip(chosen, parts, strict=True))

    def _part(self, records: int, contents: Values, times: bytes, keys: bytes, headers: bytes, ids: bytes) -> Frame:
        """A frame with other columns, which were made from the columns of this one."""
        earliest, latest = columns.time_bounds(times)
        return replace(
            self,
            records=records,
            event_time_min_us=earliest,
            event_time_max_us=latest,
            contents=contents,
            event_times_column=times,
            keys_column=keys,
            headers_column=headers,
            ids_column=ids,
        )

    def record_sizes(self) -> list[int]:
        """The bytes that each record takes in the columns, estimated slightly too high rather than too low."""
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
        """The records from `start` up to but not including `stop`; the frame itself when that is all of it. The columns
        are cut at their offsets, so the cost depends on the slice only."""
        if start == 0 and stop >= self.records:
            return self
        stop = min(stop, self.records)
        return self._part(
            stop - start,
            self.contents.slice(self.records, start, stop),
            columns.slice_times(self.event_times_column, start, stop),
            columns.slice_lists(self.keys_column, start, stop),
            columns.slice_headers(self.headers_column, start, stop),
            columns.slice_bytes(self.ids_column, start, stop),
        )

    def late_records(self, watermark_us: int) -> int:
        """How many records have an event time before the watermark."""
        if self.event_time_min_us >= watermark_us:
            return 0
        return sum(time_us < watermark_us for time_us in self.event_times_us())

    def times_only(self) -> Frame:
        """The event times of the records, without what else they hold, for uses that outlive the records."""
        return replace(self, contents=Values(), keys_column=b"", headers_column=b"", ids_column=b"")

    def traced(self, traceparent: str) -> Frame:
        """The same records with another trace context."""
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
    """A frame from columns of equal length, with at least one record."""
    return Frame(
        records=len(values),
        event_time_min_us=min(event_times_us),
        event_time_max_us=max(event_times_us),
        ingest_time_us=ingest_time_us,
        contents=Values.of(values),
        event_times_column=columns.pack_times(event_times_us),
        keys_column=columns.pack_lists(keys) if keys is not None else b"",
        headers_column=columns.pack_headers(headers) if headers is not None else b"",
        ids_column=columns.pack_bytes(ids) if ids is not None else b"",
        traceparent=traceparent,
    )


def frame_of_records(records: Sequence[Record], *, ingest_time_us: int, traceparent: str = "") -> Frame:
    """A frame from at least one record. It has ids if every record has one."""
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
    """One frame with the records of all frames, in order. It has ids if every frame has them."""
    if len(frames) == 1:
        return frames[0]
    counts = [frame.records for frame in frames]
    times = b"".join(frame.event_times_column for frame in frames)
    earliest, latest = columns.time_bounds(times)
    ids = [frame.ids_column for frame in frames]
    return Frame(
        records=sum(counts),
        event_time_min_us=earliest,
        event_time_max_us=latest,
        ingest_time_us=min(frame.ingest_time_us for frame in frames),
        contents=join_values([frame.contents for frame in frames], counts),
        event_times_column=times,
        keys_column=columns.join_lists([frame.keys_column for frame in frames], counts),
        headers_column=columns.join_headers([frame.headers_column for frame in frames], counts),
        ids_column=columns.join_bytes(ids) if all(ids) else b"",
        traceparent=next((frame.traceparent for frame in frames if frame.traceparent), ""),
    )
