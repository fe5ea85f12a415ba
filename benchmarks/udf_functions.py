"""Functions that `benchmarks/udf.py` measures."""

from __future__ import annotations

import asyncio

import millstream_udf as udf


def identity(value: bytes) -> bytes:
    """As little as a function can do."""
    return value


@udf.map
def take_record(record: udf.Record) -> bytes:
    """Sees the whole record."""
    return record.value


@udf.map
def give_message(record: udf.Record) -> udf.Message:
    """Sets keys and a tag."""
    return udf.Message(record.value, keys=("key",), tags=("even",))


def keep_half(value: bytes) -> bytes | None:
    """A filter."""
    return value if value[-1] & 1 else None


@udf.map
async def slow(value: bytes) -> bytes:
    """Waits, as for another service."""
    await asyncio.sleep(0.02)
    return value
