"""The caller's side of a user-defined function: the boundary between a vertex and a sidecar.

Above it: the lanes of the vertex process. Below it: gRPC over a unix socket (`client.py`), and the process itself
(`sidecar.py`). It knows encoded frames and answers; it does not know buffers, marks or policies.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from millstream.limits import ANSWER_RECORDS_MAX
from millstream_udf.wire.udf.v1 import udf_pb2


@dataclass(frozen=True, slots=True)
class StreamName:
    """Who opens a stream: told to the function in Hello, and part of every error."""

    pipeline: str
    vertex: str
    lane: str
    replica: int


class MapStream(Protocol):
    """One open stream for one lane: map or source transform."""

    @property
    def calls_max(self) -> int:
        """Calls without an answer the function allows."""

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
        """Send one encoded frame and wait for its answer; many calls may wait at once, and the order of sending is
        that of calling.

        When the sidecar dies or the stream breaks, the call is sent again on the next stream: the answer that is
        returned is the only one that counts, and every column of it fits the call: instead of one that does not, one
        with an `error` is returned. Raises `UdfError` when the function breaks the protocol otherwise (no message of
        it, unknown call id, an answer twice), with what it did. `answer.error` and `answer.outcomes` are the caller's
        to judge.
        """


class SinkStream(Protocol):
    """One open stream for one lane of a user-defined sink."""

    @property
    def calls_max(self) -> int: ...

    async def call(
        self, frame: bytes, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> udf_pb2.SinkAnswer:
        """Send one encoded frame and wait for its answer; as `MapStream.call`."""


class SourceStream(Protocol):
    """One open stream for one lane of a user-defined source. One read at a time."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> udf_pb2.SourceBatch:
        """As `SourceLane.read`; instead of a batch that does not fit, one with an `error` is returned. After a break,
        and after such a batch, the stream is opened again at the position of the last batch that was read: what was
        read before is still in this process, and would come twice from the last committed one."""

    async def committed(self, position: bytes) -> None: ...


class UdfClient(Protocol):
    """A running function, ready to be called."""

    @property
    def description(self) -> udf_pb2.DescribeResponse: ...

    def open_map(
        self, kind: udf_pb2.Kind.ValueType, name: StreamName, *, outputs_max: int = ANSWER_RECORDS_MAX
    ) -> AbstractAsyncContextManager[MapStream]:
        """`kind` is KIND_MAP or KIND_SOURCE_TRANSFORM; an answer has at most so many outputs."""

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]: ...

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]: ...
