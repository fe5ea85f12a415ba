"""A function that is ready for calls: a connection of its protocol, to a process that is started here or elsewhere.

Above it: the vertex process. Below it: the protocol (`protocol.py`) and the process (`sidecar.py`). Neither depends on
the other: the health check of the process is a request of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from millstream import codes
from millstream.background import beside
from millstream.errors import UdfError
from millstream.spec.protocols import NATIVE
from millstream.statistics import SidecarStatistics
from millstream.udf.lives import Lives
from millstream.udf.protocol import ClientTls, Connection, NoAnswerError, UdfClient, UdfProtocol, protocol_of
from millstream.udf.settings import NO_SETTINGS, FunctionSettings
from millstream.udf.sidecar import LogLine, Sidecar, SidecarSpec, open_sidecar
from millstream.udf.slow_calls import OldestCall, watch_calls
from millstream.udf.socket_directory import open_socket_directory

_log = logging.getLogger(__name__)


class LocalFunction(UdfClient):
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
            async with (
                connection.following_metrics(function.metrics, to_its_end=True),
                open_sidecar(function.sidecar),
            ):
                yield function


@asynccontextmanager
async def open_remote_function(
    address: str,
    *,
    protocol: UdfProtocol | None = None,
    tls: ClientTls | None = None,
    timeout_s: float = 60.0,
    on_slow: Callable[[bool], None] = lambda is_slow: None,
    settings: FunctionSettings = NO_SETTINGS,
) -> AsyncIterator[UdfClient]:
    """A function that another process runs (a container of the same pod), at `unix:/path` or `host:port`.

    `protocol`: None for the native one. Waits up to `timeout_s` for the function; raises `UdfError` if it does not
    answer. `on_slow`: as in `SidecarSpec`. `settings`: handed over at the beginning of each stream.
    """
    protocol = protocol or protocol_of(NATIVE)
    lives = Lives()
    async with protocol.connect(address, lives, tls) as connection:
        connection.hand_over(settings)
        function = UdfClient(connection, address)
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
        async with (
            connection.following_metrics(function.metrics, to_its_end=False),
            beside(watch_calls(lives, OldestCall(), report=report, on_slow=on_slow), "calls"),
        ):
            yield function
