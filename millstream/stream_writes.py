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
    """The stream has ended, or there was no connection for it. Its `code` and `details` have the reason."""


async def write(call: Any, data: bytes) -> None:
    """Writes the bytes of a message to a stream of `grpc.aio`. Waits for the connection.

    Raises `StreamEndedError` if the stream has ended.
    """
    # As in gRPC: no message may be sent before the metadata. If the call ends without a connection, this returns, too.
    await call._metadata_sent.wait()
    if call.done():
        raise StreamEndedError
    try:
        await call._cython_call.send_serialized_message(data)
    except grpc.aio.InternalError as error:
        raise StreamEndedError from error
    except asyncio.CancelledError:
        # As in gRPC: it is not known whether the message was sent.
        call.cancel()
        raise
