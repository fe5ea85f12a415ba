"""Reads of lazy states during a call, between the protocol's messages and our own types. Pure.

Above it: `client.py`. Below it: the column codecs. What the function asks for is checked here and by the reader. A read
that cannot be answered is a failure of the function's record, not of its stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import STATE_FOUND_ENTRIES_MAX
from millstream.udf.checks import count_parts
from millstream.udf.native.messages import decoded
from millstream.udf.states import StateRead, StateReader
from millstream_udf import state_found
from millstream_udf.wire.udf.v1 import udf_pb2

_READ = 3
"""Number of the field of a read in a response."""
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
        return state_found.pack_found(
            self.read_id,
            state_found.Found(found.items, found.values, found.versions, found.covered, found.has_more),
        )

    def _refused(self, why: str) -> bytes:
        return state_found.pack_refusal(self.read_id, why)


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
