"""Functions that raise `CancelledError` themselves, outside of the work on one record."""

from __future__ import annotations

import asyncio
import os

import millstream_udf as udf


def order(value: bytes) -> str:
    """Fails once per path, which is the value: the file says that it has."""
    try:
        os.close(os.open(value, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return value.decode()
    raise asyncio.CancelledError


@udf.map(decode=order)
def plain(value: str) -> str:
    return value


@udf.map(decode=order)
async def waiting(value: str) -> str:
    return value


@udf.map(decode=order, batch=True)
async def waiting_for_many(values: list[str]) -> list[str]:
    return values


@udf.map(decode=order, threads=2)
def threaded(value: str) -> str:
    return value


@udf.source
class Feed:
    """Fails in `open`, once per position that is a path."""

    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        order(position)

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        return udf.Batch([udf.Record(b"a", event_time=1)], position=b"1", ended=True)
