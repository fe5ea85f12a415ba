"""Reads of lazy states during a call, between the protocol's messages and our own types. Pure.

Above it: `client.py`. Below it: the column codecs. What the function asks for is checked here and by the reader. A read that
cannot be answered is a failure of the function's record, not of its stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import STATE_FOUND_ENTRIES_MAX
from millstream.udf.checks import count_parts
from millstream.udf.native.messages import decoded
from millstream.udf.states import StateFound, StateRead, StateReader
from millstream_udf import columns
from millstream_udf.fields import field
from millstream_udf.wire.udf.v1 import udf_pb2

_READ = 3
"""Number of the field of a read in a response."""
_FOUND = 3
"""And of what was found in a request."""
_READ_TAG = _READ << 3 | 2
_OTHER_FIELDS_MAX = 16
"""Fields of a read beside its items."""


@dataclass(frozen=True, slots=True)
class NativeRead:
    """See `Read`."""

    call_id: int
    read_id: int
    read: StateRead

    def reply(self, source: StateReader | str) -> bytes:
        if isinstance(source, str):
            return self._refused(source)
        if len(self.read.items) > STATE_FOUND_ENTRIES_MAX:
            return self._refused(
                f"{len(self.read.items):,} items were asked for; at most {STATE_FOUND_ENTRIES_MAX:,} are allowed"
            )
        try:
            found = source(self.read)
        except ValueError as error:
            return self._refused(str(error))
        return found_message(self.read_id, found)

    def _refused(self, why: str) -> bytes:
        found = udf_pb2.SealedStateFound(read_id=self.read_id, error=why)
        return udf_pb2.SealedMapRequest(found=found).SerializeToString()


def read_of(data: bytes) -> NativeRead | None:
    """A read in a response; None if it is something else. Raises `ValueError` for bytes that are not a read."""
    if not data or data[0] != _READ_TAG:
        return None
    # Before it is decoded: a message of empty items would be many times as large in memory.
    count_parts(memoryview(data), (_READ,), STATE_FOUND_ENTRIES_MAX * 2 + _OTHER_FIELDS_MAX)
    message = decoded(udf_pb2.SealedMapResponse, data)
    if not message.HasField("read"):
        raise ValueError("it is a read and something else")
    read = message.read
    return NativeRead(
        read.call_id,
        read.read_id,
        StateRead(
            key=read.key,
            state=read.state,
            items=tuple(read.items),
            first=read.first,
            end=read.end,
            entries_max=read.entries_max,
            items_only=read.items_only,
        ),
    )


def found_message(read_id: int, found: StateFound) -> bytes:
    """The request with what was found."""
    rest = udf_pb2.SealedStateFound(read_id=read_id, covered=found.covered, more=found.has_more)
    has_versions = any(version != 1 for version in found.versions)
    parts = field(
        _FOUND,
        rest.SerializeToString(),
        *field(2, columns.pack_bytes(found.items)),
        *(field(3, columns.pack_bytes(found.values)) if found.values else ()),
        *(field(4, columns.pack_offsets(found.versions)) if has_versions else ()),
    )
    return b"".join(parts)
