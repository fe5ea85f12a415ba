"""The answers to reads of lazy states, as the caller writes them on the wire. Pure.

Above it: the caller of the function, and `state_reads`, which reads them. Below it: the column codecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream_udf import columns
from millstream_udf.fields import field
from millstream_udf.wire.udf.v1 import udf_pb2

_FOUND = 3
"""Number of the field of what was found in a request."""
_FOUND_TAG = _FOUND << 3 | 2


class Found(NamedTuple):
    """The answer to a read."""

    items: Sequence[bytes]
    values: Sequence[bytes]
    """Empty if only items were wanted."""
    versions: Sequence[int]
    """Empty: all are of version 1."""
    covered: int = 0
    """How many of the items of the read this answers, from the first on."""
    has_more: bool = False
    """Whether the range may have others after the last item."""


def is_found(request: bytes) -> bool:
    """Whether a request is the answer to a read."""
    return request[:1] == bytes((_FOUND_TAG,))


def pack_found(read_id: int, found: Found) -> bytes:
    """The request with the answer to a read."""
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


def pack_refusal(read_id: int, why: str) -> bytes:
    """The request that says that a read cannot be answered."""
    return udf_pb2.SealedMapRequest(found=udf_pb2.SealedStateFound(read_id=read_id, error=why)).SerializeToString()
