"""The gRPC service of a driver: requests in, results out.

Above it: the driver process. Below it: the executor. It knows the wire and nothing of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from millstream.errors import MillstreamError, RetryLaterError
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream.wire.reduce.v1 import engine_pb2, spark_pb2, spark_pb2_grpc
from millstream_reduce.spark.executor import Executor
from millstream_reduce.spark.session import Session
from millstream_reduce.spark.transfer import encoded_rows, error_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    # Clients of another machine ask whether this one is still there, also while a long job runs.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)

CheckProgram = Callable[["SparkSession", engine_pb2.Program], engine_pb2.CheckResponse]


class SparkDriverService(spark_pb2_grpc.SparkDriverServicer):
    """The service of an open session."""

    def __init__(
        self, session: Session, executor: Executor, check: CheckProgram, description: spark_pb2.DescribeResponse
    ) -> None:
        """`description` is complete but for the numbers of jobs."""
        self._session = session
        self._executor = executor
        self._check = check
        self._description = description
        self._checking = asyncio.Semaphore(1)

    async def Describe(
        self, request: spark_pb2.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> spark_pb2.DescribeResponse:
        answer = spark_pb2.DescribeResponse()
        answer.CopyFrom(self._description)
        answer.jobs, answer.running = self._executor.jobs, self._executor.running
        return answer

    async def Check(
        self, request: spark_pb2.CheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> engine_pb2.CheckResponse:
        try:
            async with self._checking:
                return await self._session.run(self._check, request.program)
        except MillstreamError as error:
            await _abort(context, error)

    async def Run(
        self, request: engine_pb2.RunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[spark_pb2.RunResponse]:
        try:
            outcome = await self._executor.submit(request)
        except MillstreamError as error:
            await _abort(context, error)
        for part in encoded_rows(outcome.rows):
            yield spark_pb2.RunResponse(rows=part)
        yield spark_pb2.RunResponse(summary=outcome.summary)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: MillstreamError) -> NoReturn:
    text, metadata = error_parts(error)
    code = grpc.StatusCode.UNAVAILABLE if isinstance(error, RetryLaterError) else grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(code, text, metadata)
    raise AssertionError("abort raises")
