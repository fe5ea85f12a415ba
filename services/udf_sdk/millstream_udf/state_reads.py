"""Reads of lazy states while a call is in progress: how they look on the wire, and how a function waits for them.

    reading (a generator) ─► StateRead ─► ask ─► future ─► Found ─► the reading goes on
                                                   ├─ `waited`: in a thread without an event loop
                                                   └─ `awaited`: in a coroutine

Above it: `lazy_maps`. Below it: the column codecs, and what asks: a stream (`conversation`) or the test kit. A reading
is written once, for both ways of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.fields import field
from millstream_udf.state_specs import StateError
from millstream_udf.wire.udf.v1 import udf_pb2

_T = TypeVar("_T")

READ_ITEMS_MAX = 1_000
"""Items of one read."""
READ_BYTES_MAX = 256 * 1024
"""Their bytes, unless a single one has more."""
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


Ask = Callable[[udf_pb2.StateRead], "Future[Found]"]
"""Sends a read, to which it gives a number, and returns the answer to come, which may be an error. For any thread."""
Reading = Generator[udf_pb2.StateRead, Found, _T]
"""What is done with answers, read by read."""


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


def unpack_found(request: bytes) -> tuple[int, Found | StateError]:
    """The number of a read, and its answer. Raises `ValueError`."""
    try:
        sealed = udf_pb2.SealedMapRequest.FromString(request).found
    except DecodeError as error:
        raise ValueError(f"{len(request)} bytes are not the answer to a read: {error}") from error
    if sealed.error:
        return sealed.read_id, StateError(f"the state cannot be read: {sealed.error}")
    items = columns.unpack_bytes(sealed.items) if sealed.items else []
    values = columns.unpack_bytes(sealed.values) if sealed.values else []
    versions = columns.unpack_offsets(sealed.versions) if sealed.versions else ()
    if any(column and len(column) != len(items) for column in (values, versions)):
        raise ValueError(f"an answer with {len(items)} items has {len(values)} values and {len(versions)} versions")
    return sealed.read_id, Found(items, values, versions, sealed.covered, sealed.more)


def parts_of(items: Sequence[bytes]) -> list[Sequence[bytes]]:
    """These items in parts, each for one read."""
    parts: list[Sequence[bytes]] = []
    start = size = 0
    for index, item in enumerate(items):
        if index > start and (index - start >= READ_ITEMS_MAX or size + len(item) > READ_BYTES_MAX):
            parts.append(items[start:index])
            start, size = index, 0
        size += len(item)
    if start < len(items):
        parts.append(items[start:])
    return parts


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread, which would have to go on while a read waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def waited(reading: Reading[_T], ask: Ask) -> _T:
    """The result of a reading. This thread waits for the answers."""
    answer: Any = None
    while True:
        try:
            read = reading.send(answer)
        except StopIteration as ended:
            result: _T = ended.value
            return result
        answer = ask(read).result()


async def awaited(reading: Reading[_T], ask: Ask) -> _T:
    """The result of a reading. This task waits for the answers."""
    answer: Any = None
    while True:
        try:
            read = reading.send(answer)
        except StopIteration as ended:
            result: _T = ended.value
            return result
        answer = await asyncio.wrap_future(ask(read))
