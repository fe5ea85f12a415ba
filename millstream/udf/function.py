"""A function that is ready for calls: a connection of its protocol, to a process that is started here or elsewhere.

Above it: the vertex process. Below it: the protocol (`protocol.py`) and the process (`sidecar.py`). Neither depends on
the other: the health check of the process is a request of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from millstream import codes
from millstream.background import beside
from millstream.errors import UdfError
from millstream.limits import ANSWER_RECORDS_MAX
from millstream.spec.protocols import NATIVE, FunctionKind
from millstream.statistics import SidecarStatistics
from millstream.udf.lives import Lives
from millstream.udf.protocol import (
    ClientTls,
    Connection,
    Description,
    NoAnswerError,
    StreamName,
    UdfProtocol,
    protocol_of,
)
from millstream.udf.sidecar import LogLine, Sidecar, SidecarSpec, open_sidecar
from millstream.udf.slow_calls import OldestCall, watch_calls
from millstream.udf.socket_directory import open_socket_directory
from millstream.udf.streams import MapStream, PositionSinkStream, SinkStream, SourceStream

_log = logging.getLogger(__name__)

_WINDOW_FORGOTTEN = "; a vertex that reduces has `groupBy` with a `window`, such as `{window: {fixed: {length: 1m}}}`"


class Function:
    """A function behind an address; see `UdfClient`. Made by `open_local_function` and `open_remote_function`."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self.address = address
        """The address of the function, for callers in other processes of this machine."""
        self.description = Description()
        """The function's last description of itself."""

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
        """A map or source transform stream."""
        self.check_kind(kind, name)
        return self._connection.open_map(kind, name, outputs_max=outputs_max, may_return_arrow=may_return_arrow)

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]:
        """A sink stream."""
        self.check_kind(FunctionKind.SINK, name)
        return self._connection.open_sink(name)

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        """A stream of a sink that keeps positions."""
        self.check_kind(FunctionKind.SINK, name)
        return self._connection.open_position_sink(name)

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]:
        """A source stream."""
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


class LocalFunction(Function):
    """A function in a process that we start."""

    def __init__(
        self,
        connection: Connection,
        spec: SidecarSpec,
        socket: Path,
        serves_at: Mapping[str, str],
        log: LogLine,
        lives: Lives,
    ) -> None:
        super().__init__(connection, _address(socket))
        self.sidecar = Sidecar(spec, socket, serves_at, self.ask, log, lives)

    def statistics(self) -> SidecarStatistics:
        described = self.description
        return replace(self.sidecar.statistics(), language=described.language, sdk_version=described.sdk_version)


def _address(socket: Path) -> str:
    return f"unix:{socket}"


@asynccontextmanager
async def open_local_function(
    spec: SidecarSpec, *, log: LogLine, protocol: UdfProtocol | None = None
) -> AsyncIterator[LocalFunction]:
    """A function whose process answers when the block begins, and runs until the end of the block.
    `protocol`: None for the native one.

    Raises `UdfError` with the exit code and the last lines if the function never answers. The event loop must run in a
    thread that lives as long as the process: see `millstream.die_with_parent`.
    """
    protocol = protocol or protocol_of(NATIVE)
    with open_socket_directory() as directory:
        socket = directory / "udf.sock"
        lives = Lives()
        async with protocol.connect(_address(socket), lives) as connection:
            function = LocalFunction(connection, spec, socket, protocol.environment(socket), log, lives)
            async with open_sidecar(function.sidecar):
                yield function


@asynccontextmanager
async def open_remote_function(
    address: str,
    *,
    protocol: UdfProtocol | None = None,
    tls: ClientTls | None = None,
    timeout_s: float = 60.0,
    on_slow: Callable[[bool], None] = lambda is_slow: None,
) -> AsyncIterator[Function]:
    """A function that another process runs (a container of the same pod), at `unix:/path` or `host:port`.

    `protocol`: None for the native one. Waits up to `timeout_s` for the function; raises `UdfError` if it does not
    answer. `on_slow`: as in `SidecarSpec`.
    """
    protocol = protocol or protocol_of(NATIVE)
    lives = Lives()
    async with protocol.connect(address, lives, tls) as connection:
        function = Function(connection, address)
        try:
            await function.ask(timeout_s)
        except NoAnswerError as error:
            asked = (
                "is it running?" if tls is None else "is it running, and does each side accept the other's certificate?"
            )
            raise UdfError(
                codes.FUNCTION_NOT_STARTED,
                f"no function answered at {address} within {timeout_s:g} s ({error}); {asked}",
            ) from error
        report = partial(_log.warning, "the function at %s %s", address)
        async with beside(watch_calls(lives, OldestCall(), report=report, on_slow=on_slow), "calls"):
            yield function
