"""Calls of a function that reads tables: before each, it gets what it lacks of them.

    call ─► updates, one after another ─► call, with the version of the tables ─► answer
              ▲                             └─ the function has another version, or none: it is another process
              └──────── all of them ◄───────┘

Above it: the stage of a function that remembers. Below it: the tables of the lane, and the stream to the function. The
stage makes one call at a time, and no record of a table is applied meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from millstream import codes
from millstream.errors import MillstreamError, UdfError
from millstream.frame import Frame
from millstream.udf.answers import MapAnswer
from millstream.udf.endings import ProcessEndedError
from millstream.udf.states import StateEntries
from millstream.udf.streams import KeyedMapStream, TableStream
from millstream_vertex.keyed.tables import Tables

LOST_MAX = 20
"""So often in a row, a function may lose its tables before it has processed records with them."""


def calls_with_tables(stream: KeyedMapStream, tables: Tables, where: str) -> Callable[..., Awaitable[MapAnswer]]:
    """What `stream.keyed_call` is for a function that reads these tables. `where`: names the lane in messages."""
    if not tables:
        return stream.keyed_call
    if not isinstance(stream, TableStream):
        raise MillstreamError(codes.IMPOSSIBLE, f"{where}: a function that cannot have tables has some")
    return partial(_call, stream, tables, where)


async def _call(
    stream: TableStream, tables: Tables, where: str, frame: Frame, entries: StateEntries, **options: Any
) -> MapAnswer:
    for _ in range(LOST_MAX):
        if await _has_tables(stream, tables, where):
            answer = await stream.keyed_call(frame, entries, tables_version=tables.version, **options)
            if not answer.lacks_tables:
                return answer
        tables.lost()
    raise UdfError(
        codes.FUNCTION_NOT_STARTED,
        f"{where}: the function has lost its tables {LOST_MAX} times in a row, each time before it had processed a "
        "record with them. Its process may need more memory: it has a copy of each table for every partition",
    )


async def _has_tables(stream: TableStream, tables: Tables, where: str) -> bool:
    """Let the function have what it lacks of its tables. Returns whether it has all of it."""
    for update in tables.updates():
        try:
            answer = await stream.update_tables(update)
        except ProcessEndedError:
            # No record is the cause. Its supervisor reports it.
            return False
        if answer.lacks_tables:
            return False
        if answer.error:
            raise UdfError(codes.FUNCTION_PROTOCOL, f"{where}: table {update.table}: {answer.error}")
        tables.received(update)
    return True
