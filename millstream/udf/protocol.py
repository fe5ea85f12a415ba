"""The caller's side of a user-defined function: the interface for vertices, and the one that protocols implement.

    lane ─► streams of one function (`streams.py`), opened by a UdfClient        (`function.py` joins the two below)
              ├─► Connection: the function's description, and its streams           from a `UdfProtocol`
              └─► Sidecar: its process (`sidecar.py`), which depends on no protocol

Above it: the vertex process, which opens streams for its lanes. Below it: the protocols, each in a folder, found by
name (`millstream.spec.protocols`). It does not depend on buffers, marks or policies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from millstream import codes
from millstream.errors import MillstreamError, UdfError
from millstream.limits import ANSWER_RECORDS_MAX
from millstream.spec.protocols import PROTOCOLS, FunctionKind, ProtocolKind
from millstream.udf.lives import Lives
from millstream.udf.metrics import FunctionMetrics
from millstream.udf.settings import FunctionSettings
from millstream.udf.streams import MapStream, PositionSinkStream, SinkStream, SourceStream, StreamedMapStream

_WINDOW_FORGOTTEN = "; a vertex that reduces has `groupBy` with a `window`, such as `{window: {fixed: {length: 1m}}}`"
SOCKET_VARIABLE = "MILLSTREAM_UDF_SOCKET"
"""Environment variable with the path of the socket where a sidecar must serve."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """Names the opener of a stream: the function gets the name, and it is part of every error."""

    pipeline: str
    vertex: str
    lane: str
    replica: int
    edge: str = ""
    """The edge by which all records of the stream come; empty for none, or if each call says it."""

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


@dataclass(frozen=True, slots=True)
class Description:
    """A function's description of itself."""

    kinds: frozenset[FunctionKind] = frozenset()
    """The kinds that it serves."""
    language: str = ""
    sdk_version: str = ""
    concurrency: int = 0
    """Records of one stream that the function processes concurrently; 0: unknown."""
    keeps_positions: bool = False
    """Whether it is a sink whose target stores the positions of lanes."""


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

    def hand_over(self, settings: FunctionSettings) -> None:
        """Called before the first stream to a function that was not started here, with what its streams have to tell
        it. The default is for a protocol that has no message for that."""

    def following_metrics(self, metrics: FunctionMetrics, *, to_its_end: bool) -> AbstractAsyncContextManager[None]:
        """In the block, what the function counts is added to `metrics`. `to_its_end`: its process ends in the block,
        and what it counts last is waited for. The default is for a protocol without metrics."""
        return nullcontext()

    def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int, may_return_arrow: bool = False
    ) -> AbstractAsyncContextManager[MapStream]:
        """See `UdfClient`. `may_return_arrow` has no effect in a protocol without Arrow."""
        raise _absent(kind, name)

    def open_streamed_map(
        self, name: StreamName, *, outputs_max: int
    ) -> AbstractAsyncContextManager[StreamedMapStream]:
        """See `UdfClient`. Only for a protocol that `streams`."""
        raise _absent(FunctionKind.MAP, name)

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


class UdfClient:
    """A running function that is ready for calls, behind an address. Made by `open_local_function` and
    `open_remote_function`."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self.address = address
        """The address of the function, for callers in other processes of this machine."""
        self.description = Description()
        """The function's last description of itself."""
        self.metrics = FunctionMetrics()
        """What the function has counted."""

    async def ask(self, timeout_s: float) -> None:
        """Requests the function's description, waiting up to `timeout_s`. Raises like `Connection.describe`."""
        self.description = await self._connection.describe(timeout_s)

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
        self.check_kind(kind, name)
        return self._connection.open_map(kind, name, outputs_max=outputs_max, may_return_arrow=may_return_arrow)

    def open_streamed_map(
        self, name: StreamName, *, outputs_max: int = ANSWER_RECORDS_MAX
    ) -> AbstractAsyncContextManager[StreamedMapStream]:
        """For a map that sends its outputs as it makes them, at most `outputs_max` in one call."""
        self.check_kind(FunctionKind.MAP, name)
        return self._connection.open_streamed_map(name, outputs_max=outputs_max)

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]:
        """For a sink that keeps no positions."""
        self.check_kind(FunctionKind.SINK, name)
        return self._connection.open_sink(name)

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        """For a function whose description says that it keeps positions. The stream is not reopened after a break.
        Raises `StreamLostError` when it ends before the function has welcomed it."""
        self.check_kind(FunctionKind.SINK, name)
        return self._connection.open_position_sink(name)

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]:
        """For one split of a source, which continues after `position`; empty for its beginning."""
        self.check_kind(FunctionKind.SOURCE, name)
        return self._connection.open_source(name, position=position, partition=partition, partitions=partitions)

    def check_kind(self, kind: FunctionKind, name: StreamName) -> None:
        """Raises `UdfError` if the function does not serve `kind`. (Spark's tasks open the streams of a reduce
        function.)"""
        kinds = self.description.kinds
        if kind not in kinds:
            served = " and ".join(known.value for known in FunctionKind if known in kinds) or "nothing"
            raise UdfError(
                codes.FUNCTION_KIND,
                f"{name.pipeline}/{name.vertex}: the function serves {served}, but this vertex needs a {kind.value}"
                + (_WINDOW_FORGOTTEN if kinds == {FunctionKind.REDUCE} else ""),
            )


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
