"""The connection between a reduce vertex and the pipeline's Spark driver: the client, the messages, and authentication.

    vertex ─ SparkClient ══ gRPC: a token with each call ══ serving ─ driver process
             rows: whole Arrow IPC streams of bounded size; an error of ours: the status of the call, and its class

The driver may not have started yet, or die in the middle of an answer and be restarted; the client waits and asks again
forever, because asking again costs only time. Results that were computed but not completely sent do not exist. On a
Unix socket every process that may open it may ask; on a port, every client with the token. The token is passed in the
environment, where other users of the machine cannot read it, and never on a command line, where they can.

Above it: the lanes of reduces, as their engine, and the driver's server. Below it: gRPC.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import pyarrow as pa

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError, error_of, kind_of
from millstream.limits import GRPC_MESSAGE_BYTES_MAX, MIB
from millstream.pauses import RepeatedFailure
from millstream.retry import Backoff
from millstream.wire.reduce.v1 import engine_pb2, spark_pb2, spark_pb2_grpc
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.settings import TOKEN_VARIABLE
from millstream_udf.arrow_values import stream_of

_HEADER = "authorization"
_SCHEME = "Bearer "


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"{_SCHEME}{token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The call itself, or one that is refused."""
        presented = dict(handler_call_details.invocation_metadata or ()).get(_HEADER, "")
        given = presented if isinstance(presented, bytes) else presented.encode()
        if hmac.compare_digest(given, self._expected):
            return await continuation(handler_call_details)
        # A call that streams its answer is refused by the same handler: it ends before its first message.
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the token of {TOKEN_VARIABLE} is missing or wrong")


PART_BYTES_MAX = 8 * MIB
"""The most bytes of rows in one message, unless a single row is larger."""
ERROR_KIND = "millstream-error"
"""Key of the trailing metadata."""
MESSAGE_BYTES_MAX = 4096
"""The most bytes of an error's text, which is sent in a header."""


def encoded_rows(table: pa.Table) -> Iterator[bytes]:
    """A table in parts; none if it has no rows."""
    waiting = list(reversed(table.to_batches()))
    while waiting:
        batch = waiting.pop()
        if batch.num_rows > 1 and batch.nbytes > PART_BYTES_MAX:
            # Divided in halves: values differ in size, so a share of the rows is not a share of the bytes.
            half = batch.num_rows // 2
            waiting += [batch.slice(half), batch.slice(0, half)]
            continue
        if batch.num_rows:
            yield stream_of(batch)


def decoded_rows(parts: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Inverse of `encoded_rows`."""
    tables = [pa.ipc.open_stream(part).read_all() for part in parts]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def error_parts(error: MillstreamError) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text and trailing metadata for an error."""
    text = str(error).encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore")
    return text, ((ERROR_KIND, kind_of(error)),)


def error_from(text: str, metadata: Sequence[tuple[str, str | bytes]]) -> MillstreamError | None:
    """Inverse of `error_parts`; None if it is not one of our errors."""
    kind = dict(metadata).get(ERROR_KIND)
    return error_of(kind, text) if isinstance(kind, str) else None


_log = logging.getLogger(__name__)

_BACKOFF = Backoff(interval_s=0.1, factor=2.0, cap_s=1.0, jitter=0.2)
"""A short backoff, because each attempt waits until the driver can be reached."""
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Notices a driver on another machine that has vanished.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_FOR_GOOD = frozenset({
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.OUT_OF_RANGE,
})  # fmt: skip
"""Status codes that would be the same next time although they are not our errors. All others come from a lost
connection."""

Answer = TypeVar("Answer")


class SparkClient:
    """Created by `open_spark_client`."""

    def __init__(self, address: str, channel: grpc.aio.Channel, token: str) -> None:
        self._address = address
        self._metadata = ((_HEADER, f"{_SCHEME}{token}"),) if token else ()
        self._stub = spark_pb2_grpc.SparkDriverStub(channel)
        self._rng = random.Random()

    async def describe(self) -> spark_pb2.DescribeResponse:
        """Describe what runs there. Waits until Spark is ready."""
        return await self._ask(lambda: self._call(self._stub.Describe, spark_pb2.DescribeRequest()))

    async def check(self, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
        """Whether a program can run."""
        return await self._ask(lambda: self._call(self._stub.Check, spark_pb2.CheckRequest(program=program)))

    async def run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        """Compute windows. The rows are as `RunResponse.rows` says; they are complete when the summary arrives.

        Raises errors that would be the same next time: `DamageError` (the log), `UdfError`, `UserError`,
        `InfrastructureError`.
        """
        return await self._ask(lambda: self._run_once(request))

    async def _run_once(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        parts: list[bytes] = []
        async for message in self._call(self._stub.Run, request):
            if message.WhichOneof("part") == "summary":
                return decoded_rows(parts, RESULT_SCHEMA), message.summary
            parts.append(message.rows)
        raise MillstreamError(
            codes.SPARK_DRIVER_ANSWER, f"the Spark driver at {self._address} ended an answer without its summary"
        )

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        return method(request, metadata=self._metadata, wait_for_ready=True)

    async def _ask(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer."""
        attempt, repeated = 0, RepeatedFailure()
        while True:
            try:
                answer = await ask()
                repeated.over(_log, "Spark: ")
                return answer
            except grpc.aio.AioRpcError as error:
                trouble = self._trouble(error)
            repeated.warn(_log, "", f"{trouble}; asking again")
            attempt += 1
            await asyncio.sleep(_BACKOFF.delay_s(attempt, self._rng))

    def _trouble(self, error: grpc.aio.AioRpcError) -> RetryLaterError:
        """What has happened, if asking again may help; otherwise raises the error."""
        text = error.details() or ""
        ours = error_from(text, tuple(error.trailing_metadata() or ()))
        if isinstance(ours, RetryLaterError):
            return ours
        if ours is not None:
            raise ours from None
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise UserError(
                codes.SPARK_TOKEN,
                f"the Spark driver at {self._address} refuses: {text}. It and its vertices need the same token",
            )
        if error.code() in _FOR_GOOD:
            raise MillstreamError(
                codes.SPARK_DRIVER_ANSWER,
                f"the Spark driver at {self._address} refuses a request: {error.code().name}: {text}",
            )
        return RetryLaterError(codes.SPARK_LOST, f"the Spark driver at {self._address} is gone ({error.code().name})")


@asynccontextmanager
async def open_spark_client(address: str, token: str = "") -> AsyncIterator[SparkClient]:
    """A client of the driver at a gRPC address, "unix:/path" or "host:port". It need not be running yet.

    `token`: the one that the driver requires on a port.
    """
    async with grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
        yield SparkClient(address, channel, token)
