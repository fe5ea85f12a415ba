"""A real PostgreSQL for tests and benchmarks, on the loopback, with a directory and a port of its own.

Above it: tests and benchmarks. Below it: the programs of PostgreSQL: those that `make servers` fetched, or installed
ones. PostgreSQL refuses to run as root, so root runs it as `nobody`.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from millstream.ports import free_ports
from tests.support.server_process import ServerProcess, started_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USER, LOCKED, PASSWORD = "ms", "locked", "a long secret"
"""A role that everybody may be, and one with a password."""
ROLE = (
    f"DO $$ BEGIN CREATE ROLE {LOCKED} LOGIN PASSWORD '{PASSWORD}'; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
)
"""Makes the second one, if it is not there."""
_FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "postgres"
_NOBODY = "nobody"
_HBA = f"local all all trust\nhost all {LOCKED} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # What tests kill are processes: the system has what they wrote.
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
    "lc_messages": "C",
}


def programs() -> Path | None:
    """The directory of PostgreSQL's programs; None where there is none."""
    roots = [*_FETCHED.glob("usr/lib/postgresql/*/bin"), *Path("/usr/lib/postgresql").glob("*/bin")]
    found = shutil.which("postgres")
    roots += [Path(found).resolve().parent] if found else []
    return next((root for root in roots if (root / "initdb").exists() and (root / "postgres").exists()), None)


def why_missing() -> str:
    """Why no PostgreSQL can be started here; empty when one can."""
    if programs() is None:
        return "PostgreSQL is not installed, and `make servers` has not fetched it"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL refuses root, and setpriv is not installed"
    return ""


class PostgresServer(ServerProcess):
    """One server."""

    name = "PostgreSQL"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__(directory)
        self.port = free_ports(1)
        self._settings = _SETTINGS | settings
        self._databases = 0

    def processor_s(self) -> float:
        """Processor seconds of all its processes that are there, and of those that have ended."""
        total = 0.0
        for process in self._family():
            # One that ends meanwhile is among the ended ones of the next call.
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
        return total

    def make(self) -> None:
        """The files of a server that has nothing."""
        options = ["-D", str(self._data), "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(self._command("initdb", *options), check=True, capture_output=True, cwd=self.directory)
        (self._data / "pg_hba.conf").write_text(_HBA)

    def start(self) -> None:
        """Returns when it answers."""
        options = [option for name, value in self._settings.items() for option in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", str(self._data), "-p", str(self.port), "-k", str(self.directory))
        self._run([*command, *options])

    def _answers(self) -> bool:
        # Its file says `ready` as soon as it takes connections.
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            lines = (self._data / "postmaster.pid").read_text().split("\n")
            return len(lines) > 7 and lines[7].strip() == "ready" and lines[0] == str(self._server_pid())
        return False

    def _server_pid(self) -> int:
        """Of the server itself: a process that watches the parent may precede it."""
        return next((process.pid for process in self._family() if process.name() == "postgres"), 0)

    def _family(self) -> list[psutil.Process]:
        """Its processes; none if it has ended."""
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        return []

    def kill(self) -> None:
        if self._process is not None:
            family = self._family()[1:]
            super().kill()
            psutil.wait_procs(family, timeout=self.start_timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        """Each of them has a group of its own."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    async def encrypt(self) -> Path:
        """Have it take encrypted connections; returns its certificate, which is its own authority's."""
        certificate, key = self.directory / "server.crt", self.directory / "server.key"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        key.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(key, pwd.getpwnam(_NOBODY).pw_uid, -1)
        await Database(self, "postgres").execute(
            f"ALTER SYSTEM SET ssl_cert_file = '{certificate}'",
            f"ALTER SYSTEM SET ssl_key_file = '{key}'",
            "ALTER SYSTEM SET ssl = on",
            "SELECT pg_reload_conf()",
        )
        return certificate

    async def ask_for_certificate(self, directory: Path) -> tuple[Path, Path]:
        """Have it take the role `LOCKED` only with a certificate, once it is encrypted; returns that and its key."""
        certificate, key = directory / "role.crt", directory / "role.key"
        files = ["-keyout", str(key), "-out", str(certificate)]
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={LOCKED}",
            *files,
        ]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        shutil.copy(certificate, self.directory / "roles.crt")
        (self._data / "pg_hba.conf").write_text(
            _HBA.replace(f"host all {LOCKED}", f"hostssl all {LOCKED}", 1).replace("scram-sha-256", "cert")
        )
        await Database(self, "postgres").execute(
            f"ALTER SYSTEM SET ssl_ca_file = '{self.directory / 'roles.crt'}'", "SELECT pg_reload_conf()"
        )
        return certificate, key

    async def database(self) -> Database:
        """A new database."""
        self._databases += 1
        name = f"d{self._databases}"
        await Database(self, "postgres").execute(f"CREATE DATABASE {name}")
        return Database(self, name)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _command(self, program: str, *arguments: str) -> list[str]:
        found = programs()
        assert found is not None
        as_nobody = ["setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
        return [*(as_nobody if os.geteuid() == 0 else []), str(found / program), *arguments]


class Database:
    """One database, asked over a connection that is made for each question."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {
            "host": "127.0.0.1",
            "port": self.server.port,
            "database": self.name,
            "user": USER,
            "sslmode": "disable",
        }

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        import asyncpg

        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.server.port, user=USER, database=self.name, ssl="disable"
        )
        try:
            yield connection
        finally:
            await connection.close()

    async def execute(self, *statements: str) -> None:
        async with self.connected() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        async with self.connected() as connection:
            return [tuple(row) for row in await connection.fetch(statement, *values)]

    def rows_at_once(self, statement: str) -> list[tuple[Any, ...]]:
        """For those that cannot wait, whether or not a loop runs."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.rows(statement)).result()

    async def column(self, statement: str, *values: object) -> list[Any]:
        return [row[0] for row in await self.rows(statement, *values)]


@contextmanager
def open_postgres(**settings: str) -> Iterator[PostgresServer]:
    """A server of one's own, killed at the end, with its files."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        server = PostgresServer(directory, settings)
        server.make()
        with started_server(server):
            yield server
    finally:
        shutil.rmtree(directory)
