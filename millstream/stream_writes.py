"""Writes to a stream of gRPC, after which its status is the server's.

A write may fail because the server has just ended the stream. `grpc.aio` then sets the status to INTERNAL, and the
reason that the server gave is lost. So this module writes as `grpc.aio` does, but leaves the status alone.

Above it: streams to functions and to services. Below it: gRPC, of which private names are used;
tests/contract/udf/test_stream_writes.py sees that they are there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio


class StreamEndedError(Exception):
    """The stream has ended. Its `code` and `details` have the reason."""


async def write(call: Any, message: Any, data: bytes) -> None:
    """Writes a message, whose bytes are `data`, to a stream of `grpc.aio`.

    Raises `StreamEndedError` if the stream has ended, and `AioRpcError` if there is no connection.
    """
    if call.done():
        raise StreamEndedError
    if not call._metadata_sent.is_set():
        # Nothing was sent yet, so the server has ended nothing.
        await call.write(message)
        return
    try:
        await call._cython_call.send_serialized_message(data)
    except grpc.aio.InternalError as error:
        raise StreamEndedError from error
    except asyncio.CancelledError:
        # As in gRPC: it is not known whether the message was sent.
        call.cancel()
        raise
