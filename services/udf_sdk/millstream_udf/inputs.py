"""The records of one call, decoded as far as the function needs them. Pure.

Above it: `execution`. Below it: the column codecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.values import Record
from millstream_udf.wire.frame.v1 import frame_pb2


class Inputs:
    """One frame. Raises `ValueError` if its bytes are invalid."""

    def __init__(self, frame: bytes, id_prefix: str = "", first_index: int = 0) -> None:
        try:
            self.sealed = frame_pb2.SealedFrame.FromString(frame)
        except DecodeError as error:
            raise ValueError(f"{len(frame)} bytes are not a frame: {error}") from error
        self.count = self.sealed.info.records
        self._id_prefix = id_prefix
        self._first_index = first_index

    @cached_property
    def values(self) -> list[bytes]:
        values = columns.unpack_bytes(self.sealed.values)
        if len(values) != self.count:
            raise ValueError(f"a frame with {self.count} records has {len(values)} values")
        return values

    @cached_property
    def key_parts(self) -> list[tuple[bytes, ...]]:
        return columns.unpack_lists(self.sealed.keys, self.count)

    @cached_property
    def headers(self) -> list[dict[str, bytes]]:
        return columns.unpack_headers(self.sealed.headers, self.count)

    @cached_property
    def event_times_us(self) -> list[int]:
        times = columns.unpack_times(self.sealed.event_times_us)
        if len(times) != self.count:
            raise ValueError(f"a frame with {self.count} records has {len(times)} event times")
        return list(times)

    @cached_property
    def ids(self) -> list[str] | list[None]:
        if self.sealed.ids:
            ids = [item.decode() for item in columns.unpack_bytes(self.sealed.ids)]
            if len(ids) != self.count:
                raise ValueError(f"a frame with {self.count} records has {len(ids)} ids")
            return ids
        if self._id_prefix:
            return [f"{self._id_prefix}{index}" for index in range(self._first_index, self._first_index + self.count)]
        return [None] * self.count

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        if not self.sealed.keys:
            return [()] * self.count
        return [tuple(part.decode() for part in parts) for parts in self.key_parts]

    @cached_property
    def records(self) -> list[Record]:
        return self.records_with(self.values)

    def records_with(self, values: Sequence[Any]) -> list[Record[Any]]:
        """The records with other values."""
        return list(map(Record, values, self.event_times_us, self.keys, self.headers, self.ids))
