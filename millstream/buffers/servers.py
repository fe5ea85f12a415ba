"""Servers on this machine: what those of all technologies have in common, and separate ones for tests.

Above it: the server of each technology. Below it: programs, processes and files.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.files import append_private, make_private_directories, write_private
from millstream.ledger.protocol import DurabilityLevel
from millstream.ports import free_ports, is_free
from millstream.processes import Process, Stop, open_process

ACCESS_FILE = "access.json"
_SECRET_FILE = "key"
_PASSWORD_BYTES = 32
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.005
_LOG_TAIL_CHARS = 2000


def new_password() -> str:
    """A random password of letters and digits. It begins with a letter, so that a NATS server takes it for text even if
    it comes from an environment variable."""
    return f"k{secrets.token_hex(_PASSWORD_BYTES)}"


def named_program(variable: str) -> str | None:
    """The path of a program in an environment variable, if there is one. Raises `InfrastructureError` if it cannot be
    executed."""
    named = os.environ.get(variable)
    if named and not os.access(named, os.X_OK):
        raise InfrastructureError(codes.BROKER_PROGRAM, f"{variable} names {named}, which cannot be executed")
    return named or None


def log_entry(match: re.Match[bytes], time_format: str, levels: Mapping[str, str], timespec: str) -> bytes:
    """A line of a server's output in our log format. `match` has its time, its level and its message."""
    written, level, message = (part.decode(errors="replace") for part in match.groups())
    time = datetime.strptime(written, time_format).astimezone(UTC).isoformat(timespec=timespec)
    return json.dumps({"time": time, "level": levels.get(level, "info"), "message": message}).encode()


class LocalServer(ABC):
    """The part of a `Server` with its data in a directory that does not depend on the technology."""

    def __init__(self, directory: Path, *, durability: DurabilityLevel, port: int | None) -> None:
        self._directory = directory
        self._fsync = durability is DurabilityLevel.FSYNC
        self.port = port if port is not None and is_free(port) else free_ports()
        self._password = new_password()
        """The next run has a different one."""

    @property
    def store(self) -> Path:
        """Where the server keeps its data."""
        return self._directory / "store"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> Mapping[str, str]:
        try:
            make_private_directories(self.store)
            self._adopt()
        except OSError as error:
            raise InfrastructureError(
                codes.CANNOT_WRITE, f"cannot prepare the broker's directory {self._directory}: {error.strerror}"
            ) from error
        access = {"password": {"file": _SECRET_FILE}, **self._access_fields()}
        return {
            **self._config(),
            _SECRET_FILE: f"{self._password}\n",
            ACCESS_FILE: json.dumps(access, indent=1) + "\n",
        }

    @abstractmethod
    def command(self) -> list[str]:
        """See `Server.command`."""

    @abstractmethod
    async def is_ready(self, pid: int) -> bool:
        """See `Server.is_ready`."""

    def ended(self, pid: int) -> None:  # noqa: B027 - most processes leave no files that have to be removed
        """See `Server.ended`."""

    def _adopt(self) -> None:  # noqa: B027 - most technologies store data as they always did
        """Bring data of an earlier version to where this version expects it."""

    @abstractmethod
    def _config(self) -> Mapping[str, str]:
        """The names and contents of the server's own files."""

    def _access_fields(self) -> Mapping[str, object]:
        """Fields of the access file in addition to the password."""
        return {}


ServerT = TypeVar("ServerT", bound=LocalServer)


class SeparateServer(Generic[ServerT]):
    """A real server for a test or a benchmark, in a separate process and on a separate port. Its methods are faults.

    After `restart` it has the same port and the same data, like a restarted broker.
    """

    def __init__(self, directory: Path, server: ServerT, noun: str) -> None:
        """`noun`: for messages."""
        self._directory = directory
        self._server = server
        self._noun = noun
        self._process: Process | None = None
        self._life = AsyncExitStack()
        """Ends the running process."""

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def store_dir(self) -> Path:
        """Where the server keeps its files."""
        return self._server.store

    @property
    def access_file(self) -> Path:
        """The access file for another process, which also needs the URL."""
        return self._directory / ACCESS_FILE

    @property
    def pid(self) -> int:
        """Process id of the current or last process."""
        return self._started.pid

    @property
    def _started(self) -> Process:
        if self._process is None:
            raise InfrastructureError(codes.BROKER_NOT_STARTED, f"the {self._noun} has not been started")
        return self._process

    async def start(self) -> None:
        """Start the server, and return when it answers."""
        for name, text in self._server.prepare().items():
            write_private(self._directory / name, text)
        with append_private(self._output) as output:
            process = open_process(
                self._server.command(),
                name=f"a {self._noun}",
                stdout=output,
                stderr=output,
                environment={**os.environ, **self._server.environment},
                is_private=True,
            )
            self._process = await self._life.enter_async_context(process)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._until_ready(self._process)
        except TimeoutError as error:
            raise InfrastructureError(
                codes.BROKER_NOT_STARTED, f"a {self._noun} did not start in {_START_TIMEOUT_S} s: {self._tail()}"
            ) from error

    async def kill(self) -> None:
        """End the server like `kill -9`, so that it cannot write anything more."""
        await self._life.aclose()
        if self._process is not None:
            self._server.ended(self._process.pid)

    async def stop(self) -> None:
        """Let the server shut down normally."""
        if self._process is not None:
            await self._process.end(Stop(_STOP_TIMEOUT_S))
        await self.kill()

    async def restart(self, *, kill: bool = True) -> None:
        """End the server, if it still runs, and start it again with the same files and port."""
        await (self.kill() if kill else self.stop())
        await self.start()

    def pause(self) -> None:
        """Pause the process: connections stay open, but the server answers nothing."""
        self._started.pause()

    def resume(self) -> None:
        self._started.resume()

    async def _until_ready(self, process: Process) -> None:
        while not await self._server.is_ready(process.pid):
            if not process.running:
                raise InfrastructureError(
                    codes.BROKER_NOT_STARTED,
                    f"a {self._noun} ended immediately (exit code {process.exit_code}): {self._tail()}",
                )
            await asyncio.sleep(_POLL_S)
        # Files that only mattered until now are removed now rather than at the end, when a test may have made the disk
        # unavailable.
        self._server.ended(process.pid)

    @property
    def _output(self) -> Path:
        return self._directory / "server.out"

    def _tail(self) -> str:
        return self._output.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip() or "it did not write any output"


SeparateT = TypeVar("SeparateT", bound=SeparateServer[Any])


@asynccontextmanager
async def started(server: SeparateT) -> AsyncIterator[SeparateT]:
    """Starts the server, which ends with the context."""
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
