"""Functions that log, for `test_logs.py`."""

from __future__ import annotations

import logging
import sys

import millstream_udf as udf

log = logging.getLogger("shop.orders")


def _say(value: bytes, context: udf.Context) -> bytes:
    number = int(value)
    context.logger.warning("%d is late", number, extra={"order": number, "name_of": ["a", "b"]})
    log.error("no context here")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        context.logger.exception("it failed")
    context.logger.debug("for those who want to know")
    sys.stdout.write("plain text\n")
    return value


@udf.map
def plain(record: udf.Record, context: udf.Context) -> bytes:
    return _say(record.value, context)


@udf.map(threads=2)
def threaded(record: udf.Record, context: udf.Context) -> bytes:
    return _say(record.value, context)


@udf.map
async def waiting(record: udf.Record, context: udf.Context) -> bytes:
    return _say(record.value, context)


@udf.map(batch=True)
def batched(records: list[udf.Record], context: udf.Context) -> list[bytes]:
    return [_say(record.value, context) for record in records]


@udf.map
def long(value: bytes) -> bytes:
    log.warning("x" * 100_000, extra={"much": "y" * 100_000, "also": ["z" * 100_000]})
    log.warning("\0" * 100_000, extra={f"n{number}": "é" * 10_000 for number in range(20)})
    return value


@udf.map
def spanned(record: udf.Record, context: udf.Context) -> bytes:
    with context.span("my-step") as span:
        span.set_attribute("size", len(record.value))
    return record.value
