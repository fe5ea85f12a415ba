"""Reads of lazy states while a call is in progress: how a function waits for them.

    reading (a generator) ─► StateRead ─► ask ─► future ─► Found ─► the reading goes on
                                                   ├─ `waited`: in a thread without an event loop
                                                   └─ `awaited`: in a coroutine

Above it: `lazy_maps`. Below it: the answers (`state_found`), and what asks: a stream (`conversation`) or the test kit.
A reading is written once, for both ways of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.state_found import Found
from millstream_udf.state_specs import StateError
from millstream_udf.wire.udf.v1 import udf_pb2

_T = TypeVar("_T")

READ_ITEMS_MAX = 1_000
"""Items of one read."""
READ_BYTES_MAX = 256 * 1024
"""Their bytes, unless a single one has more."""
Ask = Callable[[udf_pb2.StateRead], "Future[Found]"]
"""Sends a read, to which it gives a number, and returns the answer to come, which may be an error. For any thread."""
Reading = Generator[udf_pb2.StateRead, Found, _T]
"""What is done with answers, read by read."""


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
