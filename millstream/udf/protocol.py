"""The caller's side of a user-defined function: what a vertex sees of one, and what a protocol has to give.

    lane ─► UdfClient: streams of one function        (`function.py` joins the two below)
              ├─► Connection: what the function says of itself, and its streams     from a `UdfProtocol`
              └─► Sidecar: its process (`sidecar.py`), which knows no protocol

Above it: the lanes of the vertex process. Below it: the protocols, each in a folder, found by name
(`millstream.spec.protocols`). It knows frames and answers; it does not know buffers, marks or policies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from millstream import codes
from millstream.errors import MillstreamError, UdfError
from millstream.frame import Frame
from millstream.limits import ANSWER_RECORDS_MAX
from millstream.spec.protocols import PROTOCOLS, FunctionKind, ProtocolKind
from millstream.udf.answers import Description, MapAnswer, ReadBatch, SinkAnswer

SOCKET_VARIABLE = "MILLSTREAM_UDF_SOCKET"
"""Environment variable that tells a sidecar where to serve."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """Who opens a stream: the function gets it, and it is part of every error."""

    pipeline: str
    vertex: str
    lane: str
    replica: int

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.pipeline}/{self.vertex}/{self.lane}"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a connection to a function is encrypted; PEM."""

    ca: bytes | None = None
    """Authorities that the function's certificate may come from; None: those of the system."""
    certificate: bytes | None = None
    """Our own, where the function asks for one."""
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name that the function's certificate is for, where the address has another."""


class MapStream(Protocol):
    """One open stream for one lane: map or source transform."""

    @property
    def calls_max(self) -> int:
        """Calls without an answer the function allows."""

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
    ) -> MapAnswer:
        """Send one frame and wait for its answer; many calls may wait at once, and the order of sending is that of
        calling.

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
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        """Send one frame and wait for its answer; as `MapStream.call`."""


class StreamLostError(Exception):
    """The stream of a sink that keeps positions has ended, why says its text. What was not flushed is lost, and what
    was being flushed may be in the target or not: the lane has to be opened again."""


class SinkFencedError(Exception):
    """The target has the lane's epoch or a higher one: another owner has opened it, or another run."""

    def __init__(self, said: str, position: bytes = b"") -> None:
        super().__init__(said)
        self.position = position
        """Of the target, if the function has returned it."""


class SinkFunctionError(Exception):
    """The function failed, and nothing of the transaction remains: the lane has to be opened again. The text is what
    it said."""


class PositionSinkStream(Protocol):
    """One lane of a user-defined sink that keeps positions. One call at a time; each raises `StreamLostError` when the
    stream ends, `SinkFunctionError` when the function fails, and `UdfError` when it breaks the protocol."""

    @property
    def checks(self) -> bool:
        """It may refuse records, so they have to be checked before they are written."""

    async def open(self, lane: str, epoch: int) -> bytes:
        """Take the lane over. The position that the target has; empty if it has none. Raises `SinkFencedError`."""

    async def check(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        """What of these records it refuses. Writes nothing."""

    async def write(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> None:
        """Add records to the transaction."""

    async def flush(self, position: bytes) -> None:
        """Commit the transaction and the position together. Raises `SinkFencedError`."""


class SourceStream(Protocol):
    """One open stream for one lane of a user-defined source. One read at a time."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> ReadBatch:
        """As `SourceLane.read`; instead of a batch that does not fit, one with an `error` is returned. After a break,
        and after such a batch, the stream is opened again at the position of the last batch that was read: what was
        read before is still in this process, and would come twice from the last committed one."""

    async def committed(self, position: bytes) -> None: ...


class UdfClient(Protocol):
    """A running function, ready to be called."""

    @property
    def description(self) -> Description: ...

    def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int = ANSWER_RECORDS_MAX
    ) -> AbstractAsyncContextManager[MapStream]:
        """`kind` is MAP or SOURCE_TRANSFORM; an answer has at most so many outputs."""

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]: ...

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        """Of a function whose description says that it keeps positions. One stream: it is not opened again. Raises
        `StreamLostError` when it ends before the function has welcomed it."""

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]: ...


class NoAnswerError(Exception):
    """The function did not say what it is: not in time, or nothing listens. The text says what was in the way."""


class Connection:
    """To one address, of a function that may be away and come back. A protocol overrides `describe`, and the streams of
    the kinds that it serves."""

    @abstractmethod
    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        """What the function says of itself; this is also how it is asked whether it is well.

        With `wait`, it waits for a function that is just being started. Raises `NoAnswerError` when there is no answer
        after `timeout_s`, and `UdfError` for one that does not fit.
        """

    def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int
    ) -> AbstractAsyncContextManager[MapStream]:
        """See `UdfClient`."""
        raise _absent(kind, name)

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]:
        """See `UdfClient`."""
        raise _absent(FunctionKind.SINK, name)

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        """See `UdfClient`."""
        raise _absent(FunctionKind.SINK, name)

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]:
        """See `UdfClient`."""
        raise _absent(FunctionKind.SOURCE, name)


class UdfProtocol(ProtocolKind):
    """A protocol between a vertex and its functions."""

    @abstractmethod
    def connect(self, target: str, tls: ClientTls | None = None) -> AbstractAsyncContextManager[Connection]:
        """A connection to `unix:/path` or `host:port`. Nothing needs to listen there yet."""

    def environment(self, socket: Path) -> Mapping[str, str]:
        """The environment variables that tell a program where to serve."""
        return {SOCKET_VARIABLE: str(socket)}


def protocol_of(name: str) -> UdfProtocol:
    """The protocol of that name."""
    found = PROTOCOLS.load(name)
    if not isinstance(found, UdfProtocol):
        raise MillstreamError(
            codes.IMPOSSIBLE, f"the UDF protocol {name} is not usable: it is not a {UdfProtocol.__name__}"
        )
    return found


def _absent(kind: FunctionKind, name: StreamName) -> UdfError:
    return UdfError(codes.FUNCTION_KIND, f"{name.where}: the function's protocol has no streams for a {kind.value}")
