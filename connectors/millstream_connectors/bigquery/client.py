"""A lane's way to BigQuery's Storage API, and what its errors mean to the lane.

Above it: connectors. Below it: gRPC, with the messages that Google publishes and its credentials. What is repeated, and
when, the lane decides: no request is sent twice here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigquery_storage_v1 import types

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream_connectors.bigquery.settings import BigQueryDataset
from millstream_connectors.shared.google_cloud.channels import local_error_of, open_channel

FAILURES = (grpc.RpcError, GoogleAuthError, OSError, TimeoutError, RecursionError)
"""The exceptions of a failed request or connection."""
SCOPE = "https://www.googleapis.com/auth/bigquery"
_WRITE = "/google.cloud.bigquery.storage.v1.BigQueryWrite/"
_READ = "/google.cloud.bigquery.storage.v1.BigQueryRead/"
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_UNFIT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)

Message = Any
"""A message of the published protos. The classes are created at run time, so type checkers do not know them."""


class BigQueryLink:
    """One channel. Made by `linked`."""

    def __init__(self, channel: grpc.aio.Channel, settings: BigQueryDataset, where: str) -> None:
        self.settings = settings
        self.where = where
        self._channel = channel

    async def create_stream(self, table: str, kind: str) -> Message:
        """A write stream of a kind (`COMMITTED`, `PENDING`) of a table: its name, and the table's schema."""
        stream = types.WriteStream.pb()(type_=getattr(types.WriteStream.Type, kind))
        request = types.CreateWriteStreamRequest.pb()(parent=self.settings.resource(table), write_stream=stream)
        return await self._ask(
            _WRITE + "CreateWriteStream", request, types.WriteStream.pb(), ("parent", request.parent)
        )

    async def schema(self, table: str) -> Message:
        """The schema of a table."""
        name = self.default_stream(table)
        request = types.GetWriteStreamRequest.pb()(name=name, view=types.WriteStreamView.FULL)
        return (
            await self._ask(_WRITE + "GetWriteStream", request, types.WriteStream.pb(), ("name", name))
        ).table_schema

    def default_stream(self, table: str) -> str:
        """The stream of a table that every client may append to, without offsets."""
        return f"{self.settings.resource(table)}/streams/_default"

    async def finalize(self, stream: str) -> int:
        """Let no one append to the stream any more. Returns its number of rows."""
        request = types.FinalizeWriteStreamRequest.pb()(name=stream)
        answer = types.FinalizeWriteStreamResponse.pb()
        return int((await self._ask(_WRITE + "FinalizeWriteStream", request, answer, ("name", stream))).row_count)

    def append(self, stream: str) -> Any:
        """A connection that appends rows to a stream. Each request gets one answer, in order."""
        return self._channel.stream_stream(
            _WRITE + "AppendRows",
            request_serializer=_serialized,
            response_deserializer=types.AppendRowsResponse.pb().FromString,
        )(metadata=(_routing("write_stream", stream),))

    async def read(self, table: str, columns: Sequence[str], restriction: str) -> tuple[str, list[bytes]]:
        """The rows of a table at this moment: their Avro schema, and blocks of rows."""
        parent = f"projects/{self.settings.project}"
        session = types.ReadSession.pb()(table=self.settings.resource(table), data_format=types.DataFormat.AVRO)
        session.read_options.selected_fields.extend(columns)
        session.read_options.row_restriction = restriction
        request = types.CreateReadSessionRequest.pb()(parent=parent, read_session=session, max_stream_count=1)
        place = ("read_session.table", session.table)
        made = await self._ask(_READ + "CreateReadSession", request, types.ReadSession.pb(), place)
        blocks, size = [], 0
        for stream in made.streams:
            call = self._channel.unary_stream(
                _READ + "ReadRows",
                request_serializer=_serialized,
                response_deserializer=types.ReadRowsResponse.pb().FromString,
            )(
                types.ReadRowsRequest.pb()(read_stream=stream.name),
                metadata=(_routing("read_stream", stream.name),),
                timeout=self.settings.timeout_s,
            )
            async for answer in call:
                blocks.append(answer.avro_rows.serialized_binary_rows)
                size += len(blocks[-1])
                if size > GRPC_MESSAGE_BYTES_MAX:
                    what = f"{table} has more than {GRPC_MESSAGE_BYTES_MAX} bytes of rows for this lane"
                    raise UserError(codes.TARGET_UNFIT, f"{self.where}: {what}. Use a table that only sinks write to")
        return made.avro_schema.schema, blocks

    async def _ask(self, method: str, request: Message, answer: Message, place: tuple[str, str]) -> Message:
        call = self._channel.unary_unary(
            method, request_serializer=_serialized, response_deserializer=answer.FromString
        )
        return await call(request, timeout=self.settings.timeout_s, metadata=(_routing(*place),))

    def error_of(self, error: BaseException) -> MillstreamError:
        """The Millstream error for a failure."""
        if isinstance(error, grpc.RpcError):
            return self.error_of_status(error.code(), error.details() or "")
        return local_error_of(error, f"{self.where}: BigQuery at {self.settings.endpoint}")

    def error_of_status(self, code: grpc.StatusCode, said: str) -> MillstreamError:
        """The Millstream error for a status that the service returned."""
        place = f"{self.where}: BigQuery at {self.settings.endpoint}"
        if code is grpc.StatusCode.NOT_FOUND:
            dataset = f"{self.settings.project}.{self.settings.dataset}"
            return UserError(codes.TARGET_UNFIT, f"{place} does not find it in {dataset}: {said}")
        if code in _REFUSED:
            return UserError(codes.TARGET_REFUSES, f"{place} refuses it: {said}")
        if code in _UNFIT:
            return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
        if "CERTIFICATE_VERIFY_FAILED" in said or "WRONG_VERSION_NUMBER" in said:
            return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {said}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
        return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said or code.name}")


def _serialized(message: Message) -> bytes:
    return bytes(message.SerializeToString())


def _routing(name: str, value: str) -> tuple[str, str]:
    return "x-goog-request-params", f"{name}={value}"


@asynccontextmanager
async def linked(settings: BigQueryDataset, base_dir: Path, where: str) -> AsyncIterator[BigQueryLink]:
    """A channel, open from entering to leaving. Raises `UserError` for credentials that are missing or not valid."""
    async with await open_channel(
        settings.endpoint,
        settings.credentials,
        SCOPE,
        base_dir=base_dir,
        where=where,
        service="BigQuery",
        timeout_s=settings.timeout_s,
    ) as channel:
        yield BigQueryLink(channel, settings, where)
