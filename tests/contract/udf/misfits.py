"""Columns that no SDK would make."""

from __future__ import annotations

from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2


def bytes_column(offsets: list[int], data: bytes) -> bytes:
    return frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets(offsets), data=data).SerializeToString()


def list_column(starts: list[int], items: list[bytes]) -> bytes:
    column = frame_pb2.SealedListColumn(starts=columns.pack_offsets(starts))
    column.items.ParseFromString(columns.pack_bytes(items))
    return column.SerializeToString()


def headers_column(starts: list[int], headers: int) -> bytes:
    return frame_pb2.SealedHeadersColumn(
        starts=columns.pack_offsets(starts), names=["h"] * headers, values=[b"v"] * headers
    ).SerializeToString()
