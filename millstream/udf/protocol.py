"""The caller's side of a user-defined function: the interface for vertices, and the one that protocols implement.

    lane ─► UdfClient: streams of one function        (`function.py` joins the two below)
              ├─► Connection: the function's description, and its streams           from a `UdfProtocol`
              └─► Sidecar: its process (`sidecar.py`), which depends on no protocol

Above it: the lanes of the vertex process. Below it: the protocols, each in a folder, found by name
(`millstream.spec.protocols`). It handles frames and answers; it does not depend on buffers, marks or policies.
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
from millstream.udf.endings import Ending
from millstream.udf.lives import Lives, LostCall

SOCKET_VARIABLE = "MILLSTREAM_UDF_SOCKET"
"""Environment variable with the path of the socket where a sidecar must serve."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """Names the opener of a stream: the function gets the name, and it is part of every error."""

    pipeline: str
    vertex: str
    lane: str
    replica: int

    @property
    def where(self) -> str:
        """The name for messages."""
        return f"{self.pipeline}/{self.vertex}/{self.lane}"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a connection to a function is encrypted. Certificates and keys are in PEM."""

    ca: bytes | None = None
    """Authorities that may have issued the function's certificate; None: those of the system."""
    certificate: bytes | None = None
    """Our own certificate, if the function requests one."""
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name in the function's certificate, if it differs from the address."""


class MapStream(Protocol):
    """One open stream for one lane: map or source transform."""

    @property
    def calls_max(self) -> int:
        """How many unanswered calls the function allows."""

    @property
    def takes_arrow(self) -> bool:
        """Whether frames may have Arrow columns in place of values. The stream stays usable for them if the function is
        replaced by one that takes none."""

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
        alone: bool = False,
    ) -> MapAnswer:
        """Sends one frame and waits for its answer. Many calls may wait at once; they are sent in order. With `alone`,
        the function has no other call until this one is answered.

        When the stream breaks or the sidecar is killed, the call is sent again on the next stream. If the sidecar has
        ended by its own doing, the call raises `ProcessEndedError`: its records may be the cause. Only the returned
        answer counts, and every column of it fits the call: one that does not fit is replaced by one with an `error`.
        Raises `UdfError` with the cause when the function breaks the protocol in another way (invalid message, unknown
        call id, duplicate answer). The caller handles `answer.error` and `answer.outcomes`.
        """


class SinkStream(Protocol):
    """One open stream for one lane of a user-defined sink."""

    @property
    def calls_max(self) -> int: ...

    async def call(
        self,
        frame: Frame,
        *,
        id_prefix: str,
        first_index: int,
        attempt: int = 0,
        traceparent: str = "",
        alone: bool = False,
    ) -> SinkAnswer:
        """Sends one frame and waits for its answer, like `MapStream.call`."""


class StreamLostError(Exception):
    """The stream of a sink that keeps positions has ended; the text gives the reason. Records that were not flushed are
    lost, and the target may or may not contain those of an unfinished flush: the lane has to be reopened."""

    def __init__(self, why: str, lost: LostCall | None = None) -> None:
        """`lost`: the call that was in flight."""
        super().__init__(why)
        self.lost = lost


class SinkFencedError(Exception):
    """The target already has the lane's epoch or a higher one: another owner, or another run, has opened the lane."""

    def __init__(self, said: str, position: bytes = b"") -> None:
        super().__init__(said)
        self.position = position
        """The position of the target, if the function has returned it."""


class SinkFunctionError(Exception):
    """The function failed, and nothing of the transaction remains: the lane has to be reopened. The text is the
    function's message."""


class PositionSinkStream(Protocol):
    """One lane of a user-defined sink that keeps positions. One call at a time; each raises `StreamLostError` when the
    stream ends, `SinkFunctionError` when the function fails, and `UdfError` when it breaks the protocol."""

    @property
    def checks(self) -> bool:
        """Whether the sink may refuse records, so that they have to be checked before they are written."""

    def alone(self, records: int) -> AbstractAsyncContextManager[None]:
        """In the block, the function has no other calls than those of this stream, with so many records."""

    def cause(self, lost: LostCall) -> Ending | None:
        """The end of the process that had a call of an earlier stream, if the call may be the cause."""

    async def open(self, lane: str, epoch: int) -> bytes:
        """Takes over the lane. Returns the target's position; empty if it has none. Raises `SinkFencedError`."""

    async def check(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        """Returns which of these records the sink refuses. Writes nothing."""

    async def write(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> None:
        """Adds records to the transaction."""

    async def flush(self, position: bytes) -> None:
        """Commits the transaction and the position together. Raises `SinkFencedError`."""


class SourceStream(Protocol):
    """One open stream for one lane of a user-defined source. One read at a time."""

    @property
    def is_away(self) -> bool:
        """Whether a read is waiting for the source's process, because its stream has ended."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> ReadBatch:
        """Like `SourceLane.read`. A batch that does not fit is replaced by one with an `error`. After a break, and
        after such a batch, the stream is reopened at the position of the last batch that was read: earlier records are
        still in this process, and reopening at the last committed position would repeat them."""

    async def committed(self, position: bytes) -> None: ...


class UdfClient(Protocol):
    """A running function that is ready for calls."""

    @property
    def description(self) -> Description: ...

    def open_map(
        self,
        kind: FunctionKind,
        name: StreamName,
        *,
        outputs_max: int = ANSWER_RECORDS_MAX,
        may_return_arrow: bool = False,
    ) -> AbstractAsyncContextManager[MapStream]:
        """`kind` is MAP or SOURCE_TRANSFORM; an answer has at most `outputs_max` outputs. `may_return_arrow`: answers
        may have Arrow columns in place of values."""

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]: ...

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        """For a function whose description says that it keeps positions. The stream is not reopened after a break.
        Raises `StreamLostError` when it ends before the function has welcomed it."""

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]: ...


class NoAnswerError(Exception):
    """The function did not return its description in time, or nothing listens. The text gives the reason."""


class Connection:
    """A connection to the address of one function, which may go away and come back. A protocol overrides `describe`,
    and the methods for streams of the kinds that it serves."""

    @abstractmethod
    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        """The function's description of itself. This call is also the health check of a function.

        With `wait`, it waits for a function that is being started. Raises `NoAnswerError` if there is no answer after
        `timeout_s`, and `UdfError` for an answer that does not fit.
        """

    def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int, may_return_arrow: bool = False
    ) -> AbstractAsyncContextManager[MapStream]:
        """See `UdfClient`. `may_return_arrow` has no effect in a protocol without Arrow."""
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
    def connect(
        self, target: str, lives: Lives, tls: ClientTls | None = None
    ) -> AbstractAsyncContextManager[Connection]:
        """A connection to `unix:/path` or `host:port`. The function does not have to listen there yet. `lives`: what
        is known of the function's processes, for its streams."""

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
