"""The records of one call, decoded as far as the function needs them. Pure.

Above it: `execution`. Below it: the column codecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.context import Context
from millstream_udf.fields import Data, content, without_large
from millstream_udf.values import Record
from millstream_udf.wire.frame.v1 import frame_pb2

_Sealed = frame_pb2.SealedFrame
_COLUMNS = frozenset(one.number for one in _Sealed.DESCRIPTOR.fields if one.name != "info")
"""Numbers of the columns' fields."""


class FrameInputs:
    """One frame. Raises `ValueError` if its bytes are invalid."""

    def __init__(self, frame: Data, id_prefix: str = "", first_index: int = 0) -> None:
        rest, large = without_large(frame, _COLUMNS)
        try:
            sealed = _Sealed.FromString(rest)
        except DecodeError as error:
            raise ValueError(f"{len(frame)} bytes are not a frame: {error}") from error
        self._sealed, self._large = sealed, large
        self.count = sealed.info.records
        self._id_prefix = id_prefix
        self._first_index = first_index

    @cached_property
    def values_column(self) -> bytes:
        return content(_Sealed.VALUES_FIELD_NUMBER, self._large, self._sealed.values)

    @cached_property
    def arrow_column(self) -> bytes:
        """In place of the values: see `arrow_values`."""
        return content(_Sealed.ARROW_FIELD_NUMBER, self._large, self._sealed.arrow)

    @cached_property
    def event_times_column(self) -> bytes:
        return content(_Sealed.EVENT_TIMES_US_FIELD_NUMBER, self._large, self._sealed.event_times_us)

    @cached_property
    def keys_column(self) -> bytes:
        return content(_Sealed.KEYS_FIELD_NUMBER, self._large, self._sealed.keys)

    @cached_property
    def headers_column(self) -> bytes:
        return content(_Sealed.HEADERS_FIELD_NUMBER, self._large, self._sealed.headers)

    @cached_property
    def ids_column(self) -> bytes:
        return content(_Sealed.IDS_FIELD_NUMBER, self._large, self._sealed.ids)

    @cached_property
    def values(self) -> list[bytes]:
        if self.arrow_column:
            from millstream_udf import arrow_values

            return arrow_values.as_json(self.arrow_column, self.count)
        values = columns.unpack_bytes(self.values_column)
        if len(values) != self.count:
            raise ValueError(f"a frame with {self.count} records has {len(values)} values")
        return values

    @cached_property
    def key_parts(self) -> list[tuple[bytes, ...]]:
        return columns.unpack_lists(self.keys_column, self.count)

    @cached_property
    def headers(self) -> list[dict[str, bytes]]:
        return columns.unpack_headers(self.headers_column, self.count)

    @cached_property
    def event_times_us(self) -> list[int]:
        times = columns.unpack_times(self.event_times_column)
        if len(times) != self.count:
            raise ValueError(f"a frame with {self.count} records has {len(times)} event times")
        return list(times)

    @cached_property
    def ids(self) -> list[str] | list[None]:
        if self.ids_column:
            ids = [item.decode() for item in columns.unpack_bytes(self.ids_column)]
            if len(ids) != self.count:
                raise ValueError(f"a frame with {self.count} records has {len(ids)} ids")
            return ids
        if self._id_prefix:
            return [f"{self._id_prefix}{index}" for index in range(self._first_index, self._first_index + self.count)]
        return [None] * self.count

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        if not self.keys_column:
            return [()] * self.count
        return [tuple(part.decode() for part in parts) for parts in self.key_parts]

    @cached_property
    def records(self) -> list[Record]:
        return self.records_with(self.values)

    def records_with(self, values: Sequence[Any], context: Context | None = None) -> list[Record[Any]]:
        """The records with other values. `context`: that of their call."""
        columns_ = (self.event_times_us, self.keys, self.headers, self.ids)
        return list(map(Record, values, *columns_, repeat(context)))
