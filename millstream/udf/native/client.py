"""Calls a user-defined function over gRPC: an implementation of `millstream.udf.protocol`.

Above it: the lanes of the vertex process. Below it: `calls.py` and gRPC. It knows what Map, Sink and Source say; it
does not know which process is behind the socket (`sidecar.py`), nor retry policies.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from millstream.errors import UdfError
from millstream.limits import ANSWER_RECORDS_MAX, GRPC_MESSAGE_BYTES_MAX
from millstream.udf.calls import PROTOCOL_VERSION, CallStream, Dialect, open_call_stream
from millstream.udf.checks import check_map_answer, check_parts, check_sink_answer
from millstream.udf.native.source_stream import open_source_stream
from millstream.udf.protocol import MapStream, SinkStream, SourceStream, StreamName
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2

_log = logging.getLogger(__name__)

SERVICE = "/millstream.udf.v1.Udf"
"""Prefix of the method names."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    # A sidecar is next door: when it is back it should be noticed at once. The supervisor has the backoff.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Each function has a channel, and with it a connection, of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_ANSWER = (2,)
"""Number of the answer's field in a response."""

_KIND_NAMES = {
    udf_pb2.KIND_MAP: "map",
    udf_pb2.KIND_SOURCE_TRANSFORM: "source transform",
    udf_pb2.KIND_SINK: "sink",
    udf_pb2.KIND_SOURCE: "source",
    udf_pb2.KIND_REDUCE: "reduce",
}


class GrpcUdfClient:
    """A function behind a socket. Made by `open_udf_client`; see `UdfClient`."""

    def __init__(self, channel: grpc.aio.Channel, description: udf_pb2.DescribeResponse) -> None:
        self._channel = channel
        self.description = description

    @asynccontextmanager
    async def open_map(
        self, kind: udf_pb2.Kind.ValueType, name: StreamName, *, outputs_max: int = ANSWER_RECORDS_MAX
    ) -> AsyncIterator[MapStream]:
        """A map or source transform stream."""
        times_allowed = kind == udf_pb2.KIND_SOURCE_TRANSFORM
        dialect = Dialect(
            method=f"{SERVICE}/Map",
            hello=udf_pb2.SealedMapRequest(hello=_hello(kind, name)).SerializeToString(),
            welcome=_map_welcome,
            answer=map_answer,
            check=partial(check_map_answer, outputs_max=outputs_max, times_allowed=times_allowed),
            failed=lambda call_id, error: udf_pb2.SealedMapAnswer(call_id=call_id, error=error),
        )
        self.check_kind(kind, name)
        async with open_call_stream(self._channel, name, dialect) as stream:
            yield _GrpcMapStream(stream)

    @asynccontextmanager
    async def open_sink(self, name: StreamName) -> AsyncIterator[SinkStream]:
        """A sink stream."""
        dialect = Dialect(
            method=f"{SERVICE}/Sink",
            hello=udf_pb2.SealedSinkRequest(hello=_hello(udf_pb2.KIND_SINK, name)).SerializeToString(),
            welcome=_sink_welcome,
            answer=sink_answer,
            check=check_sink_answer,
            failed=lambda call_id, error: udf_pb2.SinkAnswer(call_id=call_id, error=error),
        )
        self.check_kind(udf_pb2.KIND_SINK, name)
        async with open_call_stream(self._channel, name, dialect) as stream:
            yield _GrpcSinkStream(stream)

    @asynccontextmanager
    async def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AsyncIterator[SourceStream]:
        """A source stream."""
        self.check_kind(udf_pb2.KIND_SOURCE, name)
        opening = udf_pb2.SourceOpen(position=position, partition=partition, partitions=partitions)
        hello = _hello(udf_pb2.KIND_SOURCE, name)
        async with open_source_stream(self._channel, f"{SERVICE}/Source", name, hello, opening) as stream:
            yield stream

    def check_kind(self, kind: udf_pb2.Kind.ValueType, name: StreamName) -> None:
        """Raises `UdfError` when the function does not serve `kind`. (A reduce function's streams are opened by Spark's
        tasks.)"""
        if kind not in self.description.kinds:
            raise UdfError(
                f"{name.pipeline}/{name.vertex}: the function serves {_named(self.description.kinds)}, and this "
                f"vertex needs a "
                f"{_KIND_NAMES[kind]}"
            )


class _GrpcMapStream:
    def __init__(self, stream: CallStream[udf_pb2.SealedMapAnswer]) -> None:
        self._stream = stream

    @property
    def calls_max(self) -> int:
        return self._stream.calls_max

    async def call(
        self,
        frame: bytes,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
    ) -> udf_pb2.SealedMapAnswer:
        def encode(call_id: int) -> bytes:
            call = udf_pb2.SealedMapCall(
                call_id=call_id,
                frame=frame,
                watermark_us=watermark_us,
                attempt=attempt,
                traceparent=traceparent,
                id_prefix=id_prefix,
                first_index=first_index,
            )
            return udf_pb2.SealedMapRequest(call=call).SerializeToString()

        return await self._stream.call(encode, _records(frame), _first(id_prefix, first_index))


class _GrpcSinkStream:
    def __init__(self, stream: CallStream[udf_pb2.SinkAnswer]) -> None:
        self._stream = stream

    @property
    def calls_max(self) -> int:
        return self._stream.calls_max

    async def call(
        self, frame: bytes, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> udf_pb2.SinkAnswer:
        def encode(call_id: int) -> bytes:
            call = udf_pb2.SealedSinkCall(
                call_id=call_id,
                frame=frame,
                id_prefix=id_prefix,
                first_index=first_index,
                attempt=attempt,
                traceparent=traceparent,
            )
            return udf_pb2.SealedSinkRequest(call=call).SerializeToString()

        return await self._stream.call(encode, _records(frame), _first(id_prefix, first_index))


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a connection to a function is encrypted; PEM."""

    ca: bytes | None = None
    """Authorities that the function's certificate may come from; None: those that gRPC comes with."""
    certificate: bytes | None = None
    """Our own, where the function asks for one."""
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name that the function's certificate is for, where the address has another."""


@asynccontextmanager
async def open_channel(target: str, tls: ClientTls | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `unix:/path` or `host:port`."""
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name is not None else []
        channel = grpc.aio.secure_channel(target, credentials, options=[*CHANNEL_OPTIONS, *name])
    try:
        yield channel
    finally:
        await channel.close()


async def describe(channel: grpc.aio.Channel, timeout_s: float, *, wait: bool = True) -> udf_pb2.DescribeResponse:
    """What the function says of itself.

    Raises `UdfError` when it does not fit, `grpc.aio.AioRpcError` when it does not say.
    """
    method: Any = channel.unary_unary(f"{SERVICE}/Describe")
    data = await method(b"", timeout=timeout_s, wait_for_ready=wait)
    try:
        description = udf_pb2.DescribeResponse.FromString(data)
    except DecodeError as error:
        raise UdfError(f"what answers Describe does not speak the protocol: {error}") from error
    if description.protocol_version < PROTOCOL_VERSION:
        raise UdfError(
            f"the function speaks version {description.protocol_version} of the protocol and this Millstream version "
            f"{PROTOCOL_VERSION}: install a newer SDK ({description.language or 'language unknown'}, "
            f"{description.sdk_version or 'version unknown'})"
        )
    return description


@asynccontextmanager
async def open_udf_client(
    target: str, *, tls: ClientTls | None = None, timeout_s: float = 60.0
) -> AsyncIterator[GrpcUdfClient]:
    """A client of a function that somebody else runs (a container of the same pod), at `unix:/path` or `host:port`.

    Waits for it up to `timeout_s`; raises `UdfError` when it does not answer.
    """
    async with open_channel(target, tls) as channel:
        try:
            description = await describe(channel, timeout_s)
        except grpc.aio.AioRpcError as error:
            asked = "is it running?" if tls is None else "is it running, and do both take the other's certificate?"
            raise UdfError(
                f"no function answered at {target} within {timeout_s:g} s ({error.code().name}: {error.details()}); "
                f"{asked}"
            ) from error
        yield GrpcUdfClient(channel, description)


def _hello(kind: udf_pb2.Kind.ValueType, name: StreamName) -> udf_pb2.Hello:
    return udf_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        kind=kind,
        pipeline=name.pipeline,
        vertex=name.vertex,
        lane=name.lane,
        replica=name.replica,
    )


def _map_welcome(data: bytes) -> udf_pb2.Welcome | None:
    message = udf_pb2.SealedMapResponse.FromString(data)
    return message.welcome if message.HasField("welcome") else None


def map_answer(data: bytes) -> tuple[int, udf_pb2.SealedMapAnswer]:
    """Call id and answer. Raises `DecodeError` and `ValueError`."""
    check_parts(data, _ANSWER)
    message = udf_pb2.SealedMapResponse.FromString(data)
    if not message.HasField("answer"):
        raise ValueError("an answer was expected")
    return message.answer.call_id, message.answer


def _sink_welcome(data: bytes) -> udf_pb2.Welcome | None:
    message = udf_pb2.SinkResponse.FromString(data)
    return message.welcome if message.HasField("welcome") else None


def sink_answer(data: bytes) -> tuple[int, udf_pb2.SinkAnswer]:
    """Call id and answer. Raises `DecodeError` and `ValueError`."""
    check_parts(data, _ANSWER)
    message = udf_pb2.SinkResponse.FromString(data)
    if not message.HasField("answer"):
        raise ValueError("an answer was expected")
    return message.answer.call_id, message.answer


def _first(id_prefix: str, first_index: int) -> str:
    """Id of a call's first record, where the call has its records' ids."""
    return f"{id_prefix}{first_index}" if id_prefix else ""


def _records(frame: bytes) -> int:
    return frame_pb2.SealedFrame.FromString(frame).info.records


def _named(kinds: Sequence[udf_pb2.Kind.ValueType]) -> str:
    return " and ".join(_KIND_NAMES.get(kind, f"kind {kind}") for kind in kinds) or "nothing"
