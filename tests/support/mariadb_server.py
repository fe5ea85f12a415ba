"""A real MariaDB for tests, on the loopback, with a directory and a port of its own.

Above it: tests. Below it: the programs of MariaDB that `make servers` fetched, or installed ones. It runs as the user
of the tests; root runs it as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from millstream.ports import free_ports
from millstream.wire.certificates import make_certificate
from tests.support.server_process import ServerProcess, started_server

USER, LOCKED, PASSWORD = "ms", "locked", "a long secret"
"""A user who needs no password, and one who needs it, and may do nothing."""
_FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "mariadb"
_NOBODY = "nobody"
_INIT = f"""
CREATE USER {USER}@'127.0.0.1';
GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;
CREATE USER {LOCKED}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
"""
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "16M",
    "innodb-log-file-size": "8M",
    # What tests kill are processes: the system has what they wrote.
    "innodb-flush-method": "nosync",
    "max-connections": "60",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
    # What does not fit is cut off unless a client says otherwise.
    "sql-mode": "NO_ENGINE_SUBSTITUTION",
}


def root() -> Path | None:
    """Where the programs are; None where there are none."""
    return next((root for root in (_FETCHED, Path("/")) if (root / "usr/sbin/mariadbd").exists()), None)


def why_missing() -> str:
    """Why no MariaDB can be started here; empty when one can."""
    if root() is None:
        return "MariaDB is not installed, and `make servers` has not fetched it"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "MariaDB does not run as root here, and setpriv is not installed"
    return ""


class MariaServer(ServerProcess):
    """One server."""

    name = "MariaDB"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_ports(1)
        self._databases = 0

    def make(self) -> None:
        """The files of a server that has nothing."""
        found = root()
        assert found is not None
        share = found / "usr/share/mysql"
        tables = "".join(
            (share / name).read_text() + "\n"
            for name in ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
        )
        statements = f"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\n{tables}\nFLUSH PRIVILEGES;\n{_INIT}"
        (self.directory / "data").mkdir()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            os.chown(self.directory / "data", nobody.pw_uid, nobody.pw_gid)
        options = ["--bootstrap", "--skip-grant-tables", "--skip-networking", "--innodb-flush-method=nosync"]
        done = subprocess.run(
            self._command(*options), input=statements.encode(), capture_output=True, check=False, cwd=self.directory
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        make_certificate(self.directory)
        for name in ("server.pem", "server.key"):
            (self.directory / name).chmod(0o644)

    def start(self) -> None:
        """Returns when it answers."""
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        options += [f"--port={self.port}", f"--ssl-cert={self.directory}/server.pem"]
        options += [f"--ssl-key={self.directory}/server.key"]
        self._run(self._command(*options))

    def database(self) -> MariaDatabase:
        """A new database."""
        self._databases += 1
        name = f"d{self._databases}"
        MariaDatabase(self, "mysql").execute(f"CREATE DATABASE {name}")
        return MariaDatabase(self, name)

    def _answers(self) -> bool:
        with suppress(Exception):
            MariaDatabase(self, "mysql").rows("SELECT 1")
            return True
        return False

    def _command(self, *arguments: str) -> list[str]:
        found = root()
        assert found is not None
        libraries = [str(found / place) for place in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")]
        environment = ["env", f"LD_LIBRARY_PATH={':'.join(libraries)}"] if found != Path("/") else []
        as_nobody = ["setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
        options = [
            "--no-defaults",
            f"--datadir={self.directory}/data",
            f"--socket={self.directory}/socket",
            f"--lc-messages-dir={found}/usr/share/mysql",
            f"--character-sets-dir={found}/usr/share/mysql/charsets",
            f"--plugin-dir={found}/usr/lib/mysql/plugin",
            f"--tmpdir={self.directory}/data",
        ]
        program = str(found / "usr/sbin/mariadbd")
        return [*environment, *(as_nobody if os.geteuid() == 0 else []), program, *options, *arguments]


class MariaDatabase:
    """One database, asked over a connection that is made for each question."""

    def __init__(self, server: MariaServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        return f"mariadb+pymysql://127.0.0.1:{self.server.port}/{self.name}"

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {"url": self.url, "user": USER}

    def connect(self) -> Any:
        import pymysql  # type: ignore[import-untyped]

        return pymysql.connect(host="127.0.0.1", port=self.server.port, user=USER, database=self.name, autocommit=True)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


@contextmanager
def open_mariadb() -> Iterator[MariaServer]:
    """A server of one's own, killed at the end, with its files."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-mariadb-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        server = MariaServer(directory)
        server.make()
        with started_server(server):
            yield server
    finally:
        shutil.rmtree(directory)
