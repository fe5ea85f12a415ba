"""A connection that appends rows to one BigQuery stream: several requests in flight, ordered by their offsets.

Above it: the lane. Below it: gRPC. This module interprets the answers; the lane acts on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2

from millstream.stream_writes import StreamEndedError, write
from millstream_connectors.bigquery.client import BigQueryLink

_IN_FLIGHT = 4
"""Maximum number of requests in flight, each of up to 10 MB."""


class RefusedRowsError(Exception):
    """BigQuery refuses some rows of a request, and has written none of its rows."""

    def __init__(self, reasons: Sequence[tuple[int, str]]) -> None:
        super().__init__("; ".join(said for _, said in reasons))
        self.reasons = reasons
        """For each refused row: its index in the request, and the reason."""
        self.appended = 0
        """Number of requests before it that were appended."""


class NotAppendedError(Exception):
    """BigQuery rejects a request, or the connection has ended."""

    def __init__(self, code: grpc.StatusCode, said: str, appended: int | None = None) -> None:
        super().__init__(said)
        self.code = code
        self.said = said
        self.appended = appended
        """Number of requests before it that were appended; None if it is not known."""


class Request(NamedTuple):
    """Rows of which BigQuery appends either all or none."""

    data: Sequence[bytes]
    offset: int | None
    """Number of rows before this request in the stream. None in a stream without offsets."""


class Appending:
    """One connection. `close` ends it."""

    def __init__(self, link: BigQueryLink, stream: str, row: descriptor_pb2.DescriptorProto) -> None:
        self._link = link
        self._stream = stream
        self._row = row
        self._call: Any = None

    async def append(self, requests: Sequence[Request]) -> None:
        """Append the requests in order. Raises `RefusedRowsError` if BigQuery refuses rows of one of them, and
        `NotAppendedError` and gRPC's errors, after which it is not known what was written."""
        if self.has_ended:
            # BigQuery ends a connection that has had no traffic for 10 minutes. All requests have had their answers.
            self._call = None
        done = sent = appended = 0
        first: RefusedRowsError | NotAppendedError | None = None
        async with asyncio.timeout(self._link.settings.timeout_s):
            while done < sent or (first is None and sent < len(requests)):
                while first is None and sent < len(requests) and sent - done < _IN_FLIGHT:
                    await self._write(requests[sent])
                    sent += 1
                try:
                    answer = await self._call.read()
                except grpc.aio.AioRpcError as error:
                    raise NotAppendedError(error.code(), error.details() or "", appended) from error
                if answer is grpc.aio.EOF:
                    code = await self._call.code()
                    raise NotAppendedError(code, await self._call.details() or "the connection was closed")
                done += 1
                if first is None:
                    first = _failure(answer)
                    appended += first is None
        if first is not None:
            first.appended = appended
            raise first

    async def _write(self, request: Request) -> None:
        sent = types.AppendRowsRequest.pb()(write_stream=self._stream)
        if request.offset is not None:
            sent.offset.value = request.offset
        sent.proto_rows.rows.serialized_rows.extend(request.data)
        if self._call is None:
            self._call = self._link.append(self._stream)
            sent.proto_rows.writer_schema.proto_descriptor.CopyFrom(self._row)
        try:
            await write(self._call, sent.SerializeToString())
        except StreamEndedError as error:
            raise NotAppendedError(await self._call.code(), await self._call.details() or "it was ended") from error

    @property
    def has_ended(self) -> bool:
        """Whether BigQuery has ended the connection. The next request opens another one."""
        return self._call is not None and self._call.done()

    def close(self) -> None:
        """End the connection. BigQuery may still write the requests in flight."""
        if self._call is not None:
            self._call.cancel()
            self._call = None


def _failure(answer: Any) -> RefusedRowsError | NotAppendedError | None:
    if answer.row_errors:
        return RefusedRowsError([(int(one.index), one.message) for one in answer.row_errors])
    if answer.HasField("error"):
        codes = {code.value[0]: code for code in grpc.StatusCode}
        return NotAppendedError(codes.get(answer.error.code, grpc.StatusCode.UNKNOWN), answer.error.message)
    return None
