"""How pipeline files name a database that SQLAlchemy speaks to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Finding, Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, problem

SQLITE, MYSQL = "sqlite", ("mysql", "mariadb")
UPSERTS = (SQLITE, "postgresql", *MYSQL)
"""Databases with a statement that inserts a row or changes the one of its key."""
_SCHEME = re.compile(r"[a-z][a-z0-9]*(\+[a-z][a-z0-9_]*)?")
_DRIVERS: Mapping[str, str] = {"mysql": "pymysql", "mariadb": "pymysql", "postgresql": "psycopg"}
"""Where the URL names none: one that this page knows the package of."""
_SECRETS = ("user", "username", "password", "passwd", "pwd", "uid")
_PASSWORD = re.compile(r"(?i)[;{](token|pwd|password)\s*=")
"""In what some drivers take as a whole, such as ODBC's."""
_EXPECTED = (
    "sqlite:///FILE, mariadb+pymysql://HOST/DATABASE, or another URL of SQLAlchemy; `user` and `password` beside it"
)


def _checked_url(written: str) -> str:
    try:
        parts = urlsplit(written)
        valid = _SCHEME.fullmatch(parts.scheme) is not None and not parts.fragment and parts.port != 0
        valid = valid and "://" in written and _PASSWORD.search(unquote(parts.path + parts.query)) is None
        options = {name.lower() for name, _ in parse_qsl(parts.query)}
    except ValueError:
        parts, valid, options = SplitResult("", "", "", "", ""), False, set()
    is_file = parts.scheme.partition("+")[0] == SQLITE
    if is_file:
        valid = valid and not parts.netloc and len(parts.path) > 1 and ":memory:" not in parts.path
        valid = valid and not parts.query and parts.scheme in (SQLITE, "sqlite+pysqlite")
    if not valid or "@" in parts.netloc or options & set(_SECRETS):
        what = f"{without_secrets(written)!r} is not the address of a database"
        raise problem(codes.VALUE_MALFORMED, what, _EXPECTED)
    return written


class SqlDatabase(SpecModel):
    """A database, and who connects to it."""

    noun = "a sql connection"

    url: Annotated[Text, After(_checked_url)]
    """The database, as SQLAlchemy writes it, without credentials: `sqlite:///orders.db` (relative to the pipeline file;
    `sqlite:////var/orders.db` is not), `mariadb+pymysql://host:3306/shop`. Behind a `?` are options of the driver."""
    user: Text | None = None
    """Name of the user that connects."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`."""
    tls: ServerTls | None = None
    """TLS to MariaDB or MySQL, by PyMySQL: which certificates count; `{}` for those of the authorities of the system.
    Other drivers have options of their own in `url`."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """Longest time for one transaction or one read; then the connection is given up, and it is tried again. Duration,
    default 1m."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """What the database has no use for."""
        yield from super().relation_problems()
        if self.backend == SQLITE:
            for name in ("user", "password", "tls"):
                if getattr(self, name) is not None:
                    what = f"`{name}` has no effect with SQLite, whose database is a file"
                    yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, f"no `{name}`")
        elif self.tls is not None and (self.backend not in MYSQL or self.driver != "pymysql"):
            what = f"`tls` cannot be given to {self.backend} with {self.driver or 'its driver'}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), what, "the driver's own options behind a `?` in `url`")

    @property
    def backend(self) -> str:
        """The kind of database."""
        return urlsplit(self.url).scheme.partition("+")[0]

    @property
    def driver(self) -> str:
        """What speaks to it; empty: the one that SQLAlchemy takes."""
        return urlsplit(self.url).scheme.partition("+")[2] or _DRIVERS.get(self.backend, "")

    @property
    def file(self) -> str | None:
        """Of SQLite, as it is written."""
        return unquote(urlsplit(self.url).path.removeprefix("/")) if self.backend == SQLITE else None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def shown(self) -> str:
        """For messages."""
        parts = urlsplit(self.url)
        return self.url if self.backend == SQLITE else f"{parts.scheme}://{parts.netloc}{parts.path}"


def database_notes(settings: SqlDatabase, path: Path) -> Iterator[tuple[Path, str]]:
    """What to know about the way to a database."""
    if isinstance(settings.password, str):
        yield (*path, "password"), "the password is in the pipeline file; use `{env: NAME}` or `{file: PATH}` instead"
    is_open = settings.backend in MYSQL and settings.tls is None and settings.host != ""
    if is_open and not stays_on_this_machine(settings.host.lower()):
        yield (*path, "url"), "the records go to the server in the clear; `tls: {}` encrypts them"


def database_findings(settings: SqlDatabase, path: Path, base_dir: FilePath) -> Iterator[Finding]:
    """What this machine lacks for the way to a database."""
    if settings.file is not None:
        directory = (base_dir / settings.file).parent
        if not directory.is_dir():
            what = f"there is no directory {directory}"
            yield Finding(codes.NO_SUCH_FILE, (*path, "url"), what, "a directory, in which the file of the database is")
        return
    if find_spec("sqlalchemy") is not None:
        from millstream.sql.connecting import driver_fault

        fault = driver_fault(settings)
        if fault is not None:
            yield Finding(codes.EXTRA_NEEDED, (*path, "url"), *fault)
